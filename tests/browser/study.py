"""A small real study on an MLflow server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from llmtrack.spec.outcome import Generation
from llmtrack.spec.scores import Item
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import measurement, perplexity

EXPERIMENT = "browser"
# Without a cap, calls of a tiny model repeat for a minute: they vary too much for a narrow interval.
TINY = ["--model", "synthetic:tiny", "--max-new-tokens", "4", "--min-repeats", "2", "--min-seconds", "0"]
TINY += ["--max-seconds", "0.2"]


@dataclass(frozen=True)
class Tracked:
    """A tracked study and its store.

    Attributes:
        server: address of the MLflow server.
        experiment_id: MLflow's id of the experiment.
        study: run id of the study.
        study_id: its id.
        scenarios: run ids of the scenarios by their names.
        run_names: names of all runs, as MLflow's table shows them.
    """

    server: str
    experiment_id: str
    study: str
    study_id: str
    scenarios: dict[str, str]
    run_names: list[str]


def measure(server: str) -> Tracked:
    """Run an experiment on a tiny model, in this process, and return what it tracked."""
    from mlflow import MlflowClient

    from experiments import prompt_length
    from llmtrack.tracking.read.query import runs

    arguments = [*TINY, "--executor", "inline", "--lengths", "16,64"]
    with pytest.raises(SystemExit) as ended:
        prompt_length.main([*arguments, "--tracking-uri", server, "--experiment-name", EXPERIMENT])
    assert ended.value.code == 0
    tracked = runs(kind=None, experiment=EXPERIMENT, tracking_uri=server)
    scenarios = tracked[tracked["kind"] == "scenario"]
    (study,) = tracked.loc[tracked["kind"] == "study", "run_id"]
    client = MlflowClient(server)
    experiment_id = client.get_experiment_by_name(EXPERIMENT).experiment_id
    return Tracked(
        server,
        experiment_id,
        study,
        str(tracked.loc[tracked["kind"] == "study", "study_id"].iloc[0]),
        dict(zip(scenarios["scenario"], scenarios["run_id"], strict=True)),
        [run.info.run_name for run in client.search_runs([experiment_id])],
    )


def score(server: str, spool: Path) -> str:
    """Track two runs that scored the same documents, and return MLflow's id of their experiment."""
    names = ("1: Once upon a time", "2: A harbour wakes")
    tracker = Tracker.open(server, "documents", spool)
    study = tracker.start_study("perplexity", "q", {}, {})
    for scenario, figures in {"float32": (8.5, 9.25), "int4": (11.5, 9.75)}.items():
        items = tuple(Item(name, {"perplexity": figure}) for name, figure in zip(names, figures, strict=True))
        generations = (Generation("Once upon a time", f"as {scenario} says", 4, 3, 0.0, 1.0, 0.5, 1, 1),)
        metrics = {"perplexity": sum(figures) / 2}
        tracker.log(
            study,
            measurement(
                scenario,
                scenario=perplexity(scenario),
                metrics=metrics,
                summaries={},
                items=items,
                generations=generations,
            ),
        )
    tracker.finish_study(study, "finished")
    assert study.experiment_id is not None
    return study.experiment_id
