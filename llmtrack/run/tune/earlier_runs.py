"""How fast ways to run a model were in earlier tracked runs of this machine, each over the baseline of its study."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from llmtrack.errors import LlmtrackError
from llmtrack.metrics import metric
from llmtrack.run.reproduce import variant_of
from llmtrack.run.tune.search_space import Candidate
from llmtrack.spec.scenario import Variant
from llmtrack.tracked.run import Run
from llmtrack.tracking.query import tracked_runs

# What is tracked as it was resolved, and not as it was asked for.
_RESOLVED = ("provider", "threads")
# As long as ceilings are believed; a store of years is not read through.
_SINCE = "30d"
Key = tuple[object, ...]


def earlier_ratios(
    candidates: Sequence[Candidate],
    baseline: str,
    objective: str,
    environment_id: str,
    cpus: int,
    tracking_uri: str,
) -> dict[str, float]:
    """Return how many times as good as the baseline candidates were, the median over earlier studies, of any model.

    A store that cannot be read tells nothing: the search does without.

    Args:
        candidates: ways to run the model.
        baseline: name of the one that ratios are over.
        objective: metric to be best in.
        environment_id: hardware and versions, which must be the same.
        cpus: CPUs that compute where nothing else is asked for; 0: a GPU does.
        tracking_uri: the store.
    """
    try:
        found = tracked_runs(
            tags={"llmtrack.environment_id": environment_id},
            status="FINISHED",
            since=_SINCE,
            tracking_uri=tracking_uri,
        )
    except LlmtrackError:
        return {}
    keys = {each.name: _key_of(each, cpus) for each in candidates}
    values: dict[Key, dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in found.measured(objective):
        if (key := _tracked_key(run, cpus)) is not None:
            values[run.study_id, run.text("model_id"), run.workload_id][key].append(run.metrics[objective])
    sign = 1.0 if metric(objective).better == "higher" else -1.0
    ratios: dict[str, list[float]] = defaultdict(list)
    for of_study in values.values():
        if not (base := of_study.get(keys[baseline])):
            continue
        for name, key in keys.items():
            if name != baseline and (own := of_study.get(key)):
                ratios[name].append((median(own) / median(base)) ** sign)
    return {name: median(each) for name, each in ratios.items() if math.isfinite(median(each))}


def _key_of(candidate: Candidate, cpus: int) -> Key:
    task = candidate.task
    return _key(candidate.variant, task.batch_size or 1, task.use_cache, cpus)


def _tracked_key(run: Run, cpus: int) -> Key | None:
    try:
        variant = variant_of(run)
    except (LlmtrackError, ValueError):
        return None
    cached = not run.has("use_cache") or bool(run.params["use_cache"])
    return _key(variant, int(run.number("batch_size") or 1), cached, cpus)


def _key(variant: Variant, rows: int, cached: bool, cpus: int) -> Key:
    told: Mapping[str, object] = dict(variant.options)
    threads = int(str(told.get("threads") or 0)) or cpus
    others = tuple(sorted((name, value) for name, value in told.items() if name not in _RESOLVED))
    return (variant.backend, variant.dtype, variant.quantization, others, threads, rows, cached)
