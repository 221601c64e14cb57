"""docs/commands.md matches the commands' own help."""

from __future__ import annotations

from pathlib import Path

from docs.commands import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_help_of_every_command():
    text = page()
    assert "### llmtrack compare\n" in text
    assert "### python -m experiments.suite\n" in text
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == text, "run: make docs"
