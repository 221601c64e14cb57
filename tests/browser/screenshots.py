"""Take screenshots of tracked runs in MLflow's UI: python -m tests.browser.screenshots FOLDER."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from llmtrack.tracking import store
from llmtrack.tracking.views import run_link, runs_link
from tests.browser import chromium
from tests.browser.chromium import (
    Tab,
    artifact_place,
    compare_place,
    evaluation_place,
    models_place,
    runs_place,
    traces_place,
)
from tests.browser.study import Tracked, measure, score
from tests.tracking.conftest import Server

# For the last answers to come and the plots to be drawn; the page of runs never stops asking.
SETTLE_MS = 6000


def places(tracked: Tracked) -> dict[str, str]:
    """Return the screenshots to take: names and places of the UI."""
    experiment, study = tracked.experiment_id, tracked.study
    pair = [tracked.scenarios["prompt_16"], tracked.scenarios["prompt_64"]]
    return {
        "runs": runs_place(experiment),
        "view": runs_link("", experiment, tracked.study_id).removeprefix("#"),
        "view_charts": runs_link("", experiment, tracked.study_id, charts=True).removeprefix("#"),
        "compare": compare_place(experiment, pair),
        "scenario": f"/experiments/{experiment}/runs/{pair[0]}",
        "charts": f"/experiments/{experiment}/runs/{pair[0]}/model-metrics",
        "system": f"/experiments/{experiment}/runs/{pair[0]}/system-metrics",
        "traces": traces_place(experiment, pair[0]),
        "models": models_place(experiment),
        "study": run_link("", experiment, study).removeprefix("#"),
        "table": artifact_place(experiment, study, "table.png"),
        "report": artifact_place(experiment, study, "report.html"),
    }


def take(folder: Path) -> None:
    """Measure a small study on a separate server, and write a PNG of each place."""
    if lacking := chromium.missing():
        sys.exit(lacking)
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    store.initialise(f"sqlite:///{work / 'mlflow.db'}")
    server = Server(work)
    server.start()
    try:
        tracked = measure(server.uri)
        with chromium.browser() as browser:
            for name, place in {**places(tracked), "documents": evaluation_place(score(server.uri, work))}.items():
                tab = Tab(browser, server.uri, height=1600)
                page = tab.open(place)
                page.get_by_role("button", name="Close").click()  # MLflow's assistant takes a quarter of the page
                page.wait_for_timeout(SETTLE_MS)
                page.screenshot(path=folder / f"{name}.png")
                print(folder / f"{name}.png", *tab.errors, sep="\n  ")
    finally:
        server.stop()
        shutil.rmtree(work)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
