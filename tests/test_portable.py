"""`make portable` knows every trait of its machines, and reports what failed or could not run."""

from __future__ import annotations

import pytest

from tests import portable
from tests.forking import ROOT
from tests.portable import Row

REPORT = """<testsuites><testsuite errors="1" failures="2" skipped="3" tests="20"/></testsuites>"""


def test_every_property_of_a_machine_is_a_variable_or_a_trait():
    properties = [name for machine in portable.MACHINES.values() for name in machine]
    assert {name for name in properties if "=" not in name} == portable.TRAITS.keys()
    assert not [name for name in properties if name.endswith("=")]


def test_an_exit_code_without_a_failed_test_is_a_failure(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert portable.test_counts(path, 1) == (14, 3, 3)
    path.write_text(REPORT.replace('errors="1" failures="2"', 'errors="0" failures="0"'))
    assert portable.test_counts(path, 0) == (17, 0, 3)
    assert portable.test_counts(path, 2) == (17, 1, 3)
    assert portable.test_counts(tmp_path / "none", 4) == (0, 1, 0)


def test_an_unavailable_trait_is_a_row_with_the_reason(monkeypatch):
    def absent(run, stack):
        raise portable.UnavailableError("there is no Python 3.10")

    monkeypatch.setitem(portable.TRAITS, "Python 3.10", absent)
    rows = portable.run_as("python3.10")
    assert rows == [Row("python3.10", "Python 3.10", not_run="there is no Python 3.10")]
    assert portable.table([Row("old", "one core", (17, 1, 3)), *rows]).splitlines() == [
        "machine       passed  failed skipped  like",
        "old               17       1       3  one core",
        "python3.10                   not run  Python 3.10: there is no Python 3.10",
    ]
    assert [row.passed for row in (rows[0], Row("a", "b", (1, 0, 0)), Row("a", "b", (1, 1, 0)), Row("a", "b", (0, 0, 9)))] == [
        True, True, False, False,
    ]  # fmt: skip


def test_an_unknown_machine_is_refused(capsys):
    assert portable.main(["old", "young"]) == 2
    assert "no such machine: young: use old, avx2" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2.9", "3.99"])
def test_a_missing_python_is_named(version, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(portable.UnavailableError, match=f"there is no Python {version}"):
        portable.interpreter(version)


def test_ci_runs_it():
    assert "make portable" in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
