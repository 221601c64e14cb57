"""README shows the findings of a demo."""

from __future__ import annotations

import pytest

from docs.demo import README, findings, with_findings

LOG = "suite: what it found\n- old\n\n...\nsuite: what it found\n- One.\n- Two.\n- Three.\n- Four.\n\nTracked in here\n- no\n"


def test_the_first_findings_go_into_readme_and_nothing_else_changes():
    lines = findings(LOG)
    assert lines == "- One.\n- Two.\n- Three.\n"
    before = README.read_text(encoding="utf-8")
    after = with_findings(before, lines)
    assert f"\n```text\n{lines}```\n" in after
    assert with_findings(after, "- x\n") == with_findings(before, "- x\n")
    assert with_findings(before, findings("suite: what it found\n" + before.split("such as\n\n```text\n")[1])) == before


def test_an_interrupted_demo_is_refused():
    with pytest.raises(ValueError, match="not a log of a finished demo"):
        findings("Plan: 8 experiments\n")
