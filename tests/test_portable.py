"""`make portable`: what it would run is there, and what did not run or failed is told."""

from __future__ import annotations

import pytest

from tests import portable
from tests.forking import ROOT
from tests.portable import Row

REPORT = """<testsuites><testsuite errors="1" failures="2" skipped="3" tests="20"/></testsuites>"""


def test_all_that_a_machine_has_is_a_variable_or_a_trait():
    named = {name for likes in portable.MACHINES.values() for name in likes if "=" not in name}
    assert named == portable.TRAITS.keys()
    assert not [name for likes in portable.MACHINES.values() for name in likes if name.endswith("=")]


def test_an_end_that_no_test_explains_is_a_failure(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert portable.counted(path, 1) == (14, 3, 3)
    path.write_text(REPORT.replace('errors="1" failures="2"', 'errors="0" failures="0"'))
    assert portable.counted(path, 0) == (17, 0, 3)
    assert portable.counted(path, 2) == (17, 1, 3)
    assert portable.counted(tmp_path / "none", 4) == (0, 1, 0)


def test_what_cannot_be_had_is_a_line_with_its_reason(monkeypatch):
    def absent(run, stack):
        raise portable.NotHereError("there is no Python 3.10")

    monkeypatch.setitem(portable.TRAITS, "Python 3.10", absent)
    rows = portable.run_as("python3.10")
    assert rows == [Row("python3.10", "Python 3.10", not_run="there is no Python 3.10")]
    assert portable.table([Row("old", "one core", (17, 1, 3)), *rows]).splitlines() == [
        "machine       passed  failed skipped  like",
        "old               17       1       3  one core",
        "python3.10                   not run  Python 3.10: there is no Python 3.10",
    ]
    assert [row.good for row in (rows[0], Row("a", "b", (1, 0, 0)), Row("a", "b", (1, 1, 0)), Row("a", "b", (0, 0, 9)))] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_machine_of_no_name_is_refused(capsys):
    assert portable.main(["old", "young"]) == 2
    assert "no such machine: young: use old, avx2" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2.9", "3.99"])
def test_a_python_that_is_not_there_is_named(version, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(portable.NotHereError, match=f"there is no Python {version}"):
        portable.interpreter(version)


def test_ci_runs_it():
    assert "make portable" in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
