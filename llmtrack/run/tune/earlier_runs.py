"""Speed of candidates in earlier tracked runs on this machine, relative to the baseline of their study."""

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
from llmtrack.tracking.read.query import tracked_runs

# Options tracked as resolved, not as requested.
_RESOLVED = ("provider", "threads")
# As long as ceilings are cached; limits how much of a large store is read.
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
    """Return each candidate's median ratio to the baseline over earlier studies, of any model.

    An unreadable store yields nothing: the search continues without.

    Args:
        candidates: ways to run the model.
        baseline: name of the baseline.
        objective: metric to optimize.
        environment_id: hardware and versions, which must match.
        cpus: number of CPUs used by default; 0 for a GPU.
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
