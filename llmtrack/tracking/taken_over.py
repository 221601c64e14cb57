"""The runs of earlier studies that a resumed study took over: they are its own, and its baseline stays its baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping

from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

TAG = "llmtrack.taken_over"


def taken_over_tag(earlier: Runs) -> dict[str, str]:
    """Return the tag of a study that took over runs: each run's id, its present scenario, and whether it is the baseline."""
    held = {run.run_id: [run.text("scenario"), bool(run.baseline)] for run in earlier}
    return {TAG: json.dumps(held, separators=(",", ":"))} if held else {}


def link_to(run: Run) -> str:
    """Say which run is taken over."""
    return f"{run.text('experiment')}, run {run.run_id}"


def taken_over(tags: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Return the scenario's name, and whether it is the baseline, of each run that a study with these tags took over."""
    try:
        return {str(run_id): (str(name), bool(base)) for run_id, (name, base) in json.loads(tags[TAG]).items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def as_own(runs: Runs, study_id: str, held: Mapping[str, tuple[str, bool]]) -> Runs:
    """Return runs of which those that a study took over are told as its own."""

    def own(run: Run) -> Run:
        scenario, baseline = held[run.run_id]
        return run.standing_for(scenario, study_id=study_id, baseline=baseline)

    return Runs(own(run) if run.run_id in held else run for run in runs)
