"""Every link in a document leads to an existing file and heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")
_FENCED = re.compile(r"```.*?```", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in _LINK.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        goal = page.parent / link["path"] if link["path"] else page
        if not goal.exists() or (link["heading"] and link["heading"] not in anchors(goal)):
            dead.append(link[0])
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_has_a_target(page: Path):
    assert dead_links(page) == []


def test_a_dead_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# On a GPU: why?\n[a](#on-a-gpu-why) [b](page.md#nothing) [c](no.md)\n```\n[d](no.md)\n```\n")
    assert dead_links(page) == ["](page.md#nothing)", "](no.md)"]
