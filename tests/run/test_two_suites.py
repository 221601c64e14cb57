"""Two suites at once into one store and one spool: each is whole, and neither waits for ever for the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmtrack.tracking.query import runs
from llmtrack.tracking.spool import Spool
from tests.conftest import HANG_S

pytestmark = pytest.mark.slow(25)

ROOT = Path(__file__).parents[2]
TINY = [
    *("--model", "synthetic:tiny", "--executor", "inline", "--experiments", "baseline,perplexity"),
    *("--quick", "true", "--max-new-tokens", "2", "--min-repeats", "1", "--max-seconds", "1"),
]


def test_two_suites_at_once_are_both_whole(tmp_path, template_database):
    shutil.copyfile(template_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = os.environ | {"LLMTRACK_SPOOL": str(tmp_path / "spool"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments.suite", *TINY, "--tracking-uri", uri]
    suites = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [suite.communicate(timeout=HANG_S)[0] for suite in suites]
    assert [suite.returncode for suite in suites] == [0, 0], outputs
    tracked = runs(kind=None, tracking_uri=uri)
    assert (tracked["status"] == "FINISHED").all()
    studies = tracked[tracked["kind"] == "study"]
    assert sorted(studies["experiment"]) == sorted(["suite", "baseline", "perplexity"] * 2)
    scenarios = tracked[(tracked["kind"] == "scenario") & tracked["suite_id"].notna()]
    # A disturbed baseline may have been measured twice.
    assert {tuple(each) for each in scenarios[["suite_id", "experiment"]].to_numpy()} == {
        (suite, experiment)
        for suite in studies.loc[studies["experiment"] == "suite", "study_id"]
        for experiment in ("baseline", "perplexity")
    }
    assert Spool(tmp_path / "spool").names() == []
