"""Find scenarios that are already measured: the same request, model, work and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llmtrack.quality.corpora import load_corpus
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask, workload_id
from llmtrack.tracked.run import FINISHED, MODEL_DIGESTS, REFERENCE_DIGESTS, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs


def finished_runs(
    scenarios: Sequence[Scenario],
    environment_id: str,
    identify: Callable[[Scenario], Mapping[str, str]],
    tracking_uri: str | None = None,
) -> Runs:
    """Return the newest finished run of each scenario that has one, under the scenario's current name.

    Args:
        identify: return the model tags that a run of a scenario would have now.
    """
    runs = tracked_runs(
        status=FINISHED,
        search=f"tags.`llmtrack.environment_id` = '{environment_id}' and tags.`llmtrack.outcome` = 'finished'",
        tracking_uri=tracking_uri,
    )
    requested = {(scenario.scenario_id, _workload_id(scenario), environment_id): scenario for scenario in scenarios}
    finished, tags_of = list[Run](), dict[Scenario, Mapping[str, str]]()
    # Newest first, so that the newest of equal ones is kept.
    for run in runs:
        ids = (run.scenario_id, run.workload_id, run.environment_id)
        # A run killed before it was remeasured, or before all of its rounds, does not count.
        if (scenario := requested.get(ids)) is None or run.is_replaced or run.is_cut_short:
            continue
        if scenario not in tags_of:
            tags_of[scenario] = identify(scenario)
        if _measured_the_same(run, tags_of[scenario], _scored_text(scenario)) and _calibrated_the_same(run, scenario):
            del requested[ids]
            finished.append(run.as_scenario(scenario.name, baseline=scenario.baseline))
    return Runs(finished)


def _measured_the_same(run: Run, tags: Mapping[str, str], text_digest: str) -> bool:
    """Return whether a run measured this model against the same reference, and scored this text.

    Without digests, names decide.
    """
    columns = {"revision": "revision"} | {name: f"env.{name}" for name in (*MODEL_DIGESTS, *REFERENCE_DIGESTS)}
    same_model = all(run.text(columns[name]) == tags[name] for name in columns if name in tags)
    return same_model and text_digest in ("", run.text("corpus_digest"))


def _calibrated_the_same(run: Run, scenario: Scenario) -> bool:
    """Return whether a run was quantized with the same calibration text as the scenario would be now."""
    calibrated_with = run.text("calibration_digest")
    if not calibrated_with:
        return True
    corpus = str(scenario.variant.option("calibration", run.text("calibration")))
    return load_corpus(corpus).digest == calibrated_with


def _workload_id(scenario: Scenario) -> str:
    task = scenario.task
    return workload_id(task, "" if isinstance(task, GenerateTask) else load_corpus(task.corpus).digest)


def _scored_text(scenario: Scenario) -> str:
    """Return the digest of the text scored beside a timed task, or an empty text."""
    return "" if scenario.quality is None else load_corpus(scenario.quality.perplexity.corpus).digest
