"""README shows the lines that a demo ends with."""

from __future__ import annotations

import pytest

from docs.demo import README, found_in, with_found

LOG = "suite: what it found\n- old\n\n...\nsuite: what it found\n- One.\n- Two.\n- Three.\n- Four.\n\nTracked in here\n- no\n"


def test_the_first_lines_of_the_end_go_into_readme_and_nothing_else_changes():
    found = found_in(LOG)
    assert found == "- One.\n- Two.\n- Three.\n"
    before = README.read_text(encoding="utf-8")
    after = with_found(before, found)
    assert f"\n```text\n{found}```\n" in after
    assert with_found(after, "- x\n") == with_found(before, "- x\n")
    assert with_found(before, found_in("suite: what it found\n" + before.split("such as\n\n```text\n")[1])) == before


def test_a_demo_that_was_interrupted_has_nothing_to_show():
    with pytest.raises(ValueError, match="not a log of a finished demo"):
        found_in("Plan: 8 experiments\n")
