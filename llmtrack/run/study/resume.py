"""Find scenarios that are already measured: the same request, model, work and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llmtrack.quality.corpora import load_corpus
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask, workload_id
from llmtrack.tracked.run import FINISHED, MODEL_DIGESTS, REFERENCE_DIGESTS, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs


def finished_already(
    scenarios: Sequence[Scenario],
    environment_id: str,
    identify: Callable[[Scenario], Mapping[str, str]],
    tracking_uri: str | None = None,
) -> Runs:
    """Return the newest finished run of each scenario that has one, under the scenario's current name.

    Args:
        environment_id: id of this machine and installation.
        identify: return the model tags that a run of a scenario would have now.
        tracking_uri: the store.
    """
    found = tracked_runs(
        status=FINISHED,
        search=f"tags.`llmtrack.environment_id` = '{environment_id}' and tags.`llmtrack.outcome` = 'finished'",
        tracking_uri=tracking_uri,
    )
    asked = {(scenario.scenario_id, _workload_id(scenario), environment_id): scenario for scenario in scenarios}
    earlier, models = list[Run](), dict[Scenario, Mapping[str, str]]()
    # Newest first, so that the newest of equal ones is kept.
    for run in found:
        ids = (run.scenario_id, run.workload_id, run.environment_id)
        # A run killed before it was remeasured, or before all of its rounds, does not count.
        if (scenario := asked.get(ids)) is None or run.is_replaced or run.is_cut_short:
            continue
        if scenario not in models:
            models[scenario] = identify(scenario)
        if _is_of(run, models[scenario], _scored_text(scenario)) and _calibrated_alike(run, scenario):
            del asked[ids]
            earlier.append(run.as_scenario(scenario.name, baseline=scenario.baseline))
    return Runs(earlier)


def _is_of(run: Run, model: Mapping[str, str], scored: str) -> bool:
    """Return whether a run measured this model, against the same reference, and scored this text; without digests,
    names decide.
    """
    columns = {"revision": "revision"} | {name: f"env.{name}" for name in (*MODEL_DIGESTS, *REFERENCE_DIGESTS)}
    same_model = all(run.text(columns[name]) == model[name] for name in columns if name in model)
    return same_model and scored in ("", run.text("corpus_digest"))


def _calibrated_alike(run: Run, scenario: Scenario) -> bool:
    """Return whether a run was quantized with the same calibration text as the scenario would be now."""
    looked_at = run.text("calibration_digest")
    if not looked_at:
        return True
    corpus = str(scenario.variant.option("calibration", run.text("calibration")))
    return load_corpus(corpus).digest == looked_at


def _workload_id(scenario: Scenario) -> str:
    task = scenario.task
    return workload_id(task, "" if isinstance(task, GenerateTask) else load_corpus(task.corpus).digest)


def _scored_text(scenario: Scenario) -> str:
    """Return the digest of the text scored beside a timed task, or an empty text."""
    return "" if scenario.quality is None else load_corpus(scenario.quality.perplexity.corpus).digest
