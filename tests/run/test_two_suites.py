"""Two concurrent suites in one store and spool: both complete, and neither blocks the other."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmtrack.tracking.read.query import runs
from llmtrack.tracking.write.spool import Spool
from tests.conftest import HANG_S, draw_nothing, know_ceilings
from tests.forking import Forked

pytestmark = pytest.mark.slow(12)

TINY = [
    *("--model", "synthetic:tiny", "--executor", "inline", "--experiments", "baseline,perplexity"),
    *("--quick", "true", "--max-new-tokens", "2", "--min-repeats", "1", "--max-seconds", "1"),
]


def measure(uri):
    """Measure as the command does, without plots and device probes, which two at once would keep repeating."""
    from experiments import suite

    os.dup2(1, 2)
    patch = pytest.MonkeyPatch()
    draw_nothing(patch)
    know_ceilings(patch)
    suite.main([*TINY, "--tracking-uri", uri])


def test_two_concurrent_suites_are_both_complete(tmp_path, template_database, monkeypatch):
    shutil.copyfile(template_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"LLMTRACK_SPOOL": str(tmp_path / "spool")}
    suites = [Forked(measure, uri, environment=environment) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda suite: suite.stdout.read(), suites))
    assert [suite.wait(HANG_S) for suite in suites] == [0, 0], outputs
    tracked = runs(kind=None, tracking_uri=uri)
    assert (tracked["status"] == "FINISHED").all()
    studies = tracked[tracked["kind"] == "study"]
    assert sorted(studies["experiment"]) == sorted(["suite", "baseline", "perplexity"] * 2)
    scenarios = tracked[(tracked["kind"] == "scenario") & tracked["suite_id"].notna()]
    # A disturbed baseline may have been measured twice.
    assert {tuple(row) for row in scenarios[["suite_id", "experiment"]].to_numpy()} == {
        (suite, experiment)
        for suite in studies.loc[studies["experiment"] == "suite", "study_id"]
        for experiment in ("baseline", "perplexity")
    }
    assert Spool(tmp_path / "spool").names() == []
