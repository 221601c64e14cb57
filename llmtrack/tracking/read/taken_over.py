"""Runs of earlier studies that a resumed study took over; they count as its own, and its baseline stays its baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping

from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

TAG = "llmtrack.taken_over"


def taken_over_tag(earlier: Runs) -> dict[str, str]:
    """Return the tag with the runs taken over: each run's id, current scenario, and whether it is the baseline."""
    held = {run.run_id: [run.text("scenario"), bool(run.baseline)] for run in earlier}
    return {TAG: json.dumps(held, separators=(",", ":"))} if held else {}


def link_to(run: Run) -> str:
    """Describe a run that is taken over."""
    return f"{run.text('experiment')}, run {run.run_id}"


def taken_over(tags: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Parse the tag: scenario name and baseline flag by run id."""
    try:
        return {str(run_id): (str(name), bool(base)) for run_id, (name, base) in json.loads(tags[TAG]).items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def as_own(runs: Runs, study_id: str, held: Mapping[str, tuple[str, bool]]) -> Runs:
    """Present the runs that a study took over as its own."""

    def own(run: Run) -> Run:
        scenario, baseline = held[run.run_id]
        return run.standing_for(scenario, study_id=study_id, baseline=baseline)

    return Runs(own(run) if run.run_id in held else run for run in runs)
