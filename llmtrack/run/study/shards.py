"""Distribute the shards of a text to several workers, and merge the results as if there were one."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import plural
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.quality.attach import Scores
from llmtrack.quality.metrics import Drift, cut_warnings, quality_warnings
from llmtrack.quality.shards import merge, merge_drift
from llmtrack.run.executors.executor import ParallelWorkers
from llmtrack.run.study.threads import Calls, run_in_threads
from llmtrack.spec.events import Emit, Event, Log, Progress, Warn
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.scores import Compared, Part
from llmtrack.spec.task import PerplexityTask, ShardTask

SHARDS_EACH = 32
"""Shards per worker: small enough to lose or wait for little; faster workers take more of them."""

LOST = ("killed", "timeout")
"""Failures of the worker rather than of the work, which another worker may do."""

_TEXT_FACTS = ("corpus", "corpus_digest", "corpus_blank_rows", "stride")
_MODEL_FACTS = ("model_id", "device", "dtype", "corpus_digest")

ShardResult = tuple[int, Measurement]
"""Worker number from 0, and its measurement of a shard."""


def shards_of(scenario: Scenario, task: PerplexityTask, of: int) -> list[Scenario]:
    """Return the scenarios that score the shards of a text."""
    settings = {**vars(task), "workers": 1, "occasion": secrets.token_hex(4)}
    return [
        replace(
            scenario,
            name=f"{scenario.name} [shard {number + 1}/{of}]",
            task=ShardTask(**settings, number=number, of=of),
            baseline=False,
        )
        for number in range(of)
    ]


@dataclass(frozen=True, kw_only=True)
class SharedScores(Scores):
    """Merged scores of a text.

    Attributes:
        table: tab-separated table of each shard's worker, node and duration.
    """

    table: str


def merge_scores(task: PerplexityTask, results: Sequence[ShardResult]) -> SharedScores:
    """Merge the scores of a text's shards, in any order.

    The speed is that of all workers together: the text's tokens over the time of the worker that scored longest, summed
    over its shards. Loading and lost work do not count.

    Raises:
        ScenarioError: the shards are incomplete, or of different models.
    """
    parts = [part for part in _parts(results) if isinstance(part, Part)]
    quality = merge(parts)
    seconds: dict[int, float] = {}
    for (worker, _), part in zip(sorted(results, key=_number), parts, strict=True):
        seconds[worker] = seconds.get(worker, 0.0) + part.seconds
    longest = max(seconds.values())
    warnings = dict.fromkeys(line for _, shard in sorted(results, key=_number) for line in shard.warnings)
    facts = results[0][1].facts
    return SharedScores(
        metrics=quality.figures | ({"score_tokens_per_sec": quality.tokens_scored / longest} if longest > 0 else {}),
        facts={name: facts[name] for name in _TEXT_FACTS if name in facts} | quality.facts | {"shards": len(results)},
        warnings=(*warnings, *quality_warnings(quality), *cut_warnings(quality, task)),
        batch_losses=quality.batch_losses,
        batch_size=quality.batch_size,
        items=quality.items,
        table=_table(results),
    )


def merge_shards(scenario: Scenario, task: PerplexityTask, results: Sequence[ShardResult]) -> Measurement:
    """Merge the measurements of a text's shards; see `merge_scores`."""
    scores = merge_scores(task, results)
    shards = [shard for _, shard in sorted(results, key=_number)]
    first = shards[0]
    metrics = {**first.metrics, **scores.metrics}
    for name in ("load_time_s", "peak_memory_mib"):
        if values := [shard.metrics[name] for shard in shards if name in shard.metrics]:
            metrics[name] = max(values)
    nodes = dict.fromkeys(shard.tags["node"] for shard in shards if "node" in shard.tags)
    workers = len({worker for worker, _ in results})
    return replace(
        first,
        scenario=scenario,
        metrics=metrics,
        facts={**first.facts, **scores.facts, "batch_size": scores.batch_size, "workers": workers},
        warnings=scores.warnings,
        tags={**first.tags, **({"node": ", ".join(nodes)} if nodes else {})},
        series={**first.series, "batch_loss": scores.batch_losses},
        items=scores.items,
        started_at=min(shard.started_at for shard in shards),
        ended_at=max(shard.ended_at for shard in shards),
        texts={**first.texts, "shards.txt": scores.table},
        part=None,
    )


def merge_comparisons(results: Sequence[ShardResult]) -> tuple[Drift, dict[str, str]]:
    """Merge the comparisons of a text's shards with the reference; also return the reference's digests.

    Raises:
        ScenarioError: the shards are incomplete, or of different models.
    """
    drift = merge_drift([part for part in _parts(results) if isinstance(part, Compared)])
    tags = results[0][1].tags
    return drift, {name: value for name, value in tags.items() if name.startswith(REFERENCE_TAG_PREFIX)}


def score_shards(
    scenario: Scenario, shards: Sequence[Scenario], parallel: ParallelWorkers, emit: Emit
) -> list[ShardResult] | Failure:
    """Measure shards with several workers; return the result of each, or a failure.

    Args:
        scenario: the whole, which progress and failures refer to.
        parallel: the workers; a shard lost with a worker is retried.
    """
    work = _Work(scenario, shards, parallel, emit)
    jobs = [partial(work.run, number) for number in range(len(parallel.runs))]
    run_in_threads(jobs, len(jobs), work.calls, work.stop)
    return work.failure or list(work.done.values())


class _Work:
    """Shards to score and their results; thread-safe."""

    def __init__(self, scenario: Scenario, shards: Sequence[Scenario], parallel: ParallelWorkers, emit: Emit) -> None:
        self.done: dict[str, ShardResult] = {}
        self.failure: Failure | None = None
        self.calls = Calls()
        self._scenario, self._parallel, self._emit = scenario, parallel, emit
        self._texts: set[str] = set()
        self._shards = {shard.name: shard for shard in shards}
        self._queue = deque(self._shards.values())
        self._tries = dict.fromkeys(self._shards, 0)
        self._shares = dict.fromkeys(self._shards, 0.0)
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, worker: int) -> None:
        """Let a worker score shards until none is left."""
        while shards := self._next():
            self._parallel.runs[worker](shards, partial(self._on_event, worker))

    def stop(self) -> None:
        """Hand out no more shards, and end the workers."""
        with self._lock:
            self._stopped = True
            self._queue.clear()
        self._parallel.stop()

    def _next(self) -> tuple[Scenario, ...]:
        with self._lock:
            most = -(-len(self._shards) // len(self._parallel.runs)) if self._parallel.all_at_once else 1
            return tuple(self._queue.popleft() for _ in range(min(most, len(self._queue))))

    def _on_event(self, worker: int, event: Event) -> None:
        with self._lock:
            if isinstance(event, Measurement):
                self.done[event.scenario.name] = (worker, event)
                self._shares[event.scenario.name] = 1.0
            elif isinstance(event, Failure):
                event = self._lose(event)
            elif isinstance(event, Progress) and event.done is not None:
                self._shares[event.scenario] = event.done
            if isinstance(event, (Measurement, Failure, Progress)):
                step = f"{len(self.done)}/{len(self._shards)} shards, {len(self._parallel.runs)} workers"
                event = Progress(self._scenario.name, step, sum(self._shares.values()) / len(self._shards))
        self.calls.put(partial(self._emit_once, event))

    def _emit_once(self, event: Event) -> None:
        """Emit an event, but messages of all workers, such as the loaded model, only once."""
        if isinstance(event, (Log, Warn)):
            if event.text in self._texts:
                return
            self._texts.add(event.text)
        self._emit(event)

    def _lose(self, failure: Failure) -> Event:
        """Requeue a shard lost with its worker, up to a limit; any other failure fails the whole."""
        name = failure.scenario.name
        self._tries[name] += 1
        self._shares[name] = 0.0
        is_ending = self._stopped or self.failure is not None
        if failure.kind in LOST and self._tries[name] <= self._parallel.retries and not is_ending:
            self._queue.append(self._shards[name])
            return Log(f"  {name}: {failure.reason}; it is scored again")
        if self.failure is None:
            reason = failure.reason
            if self._tries[name] > 1:
                reason = f"lost {plural(self._tries[name], 'time')}: {reason}"
            shard = name.removeprefix(self._scenario.name).strip(" []")
            self.failure = replace(failure, scenario=self._scenario, reason=f"{shard}: {reason}")
        self._queue.clear()
        return failure


def _number(result: ShardResult) -> int:
    task = result[1].scenario.task
    assert isinstance(task, ShardTask)
    return task.number


def _parts(results: Sequence[ShardResult]) -> list[Part | Compared | None]:
    """Return the shards' results in their order.

    Raises:
        ScenarioError: the workers loaded different models.
    """
    if any(_model(shard) != _model(results[0][1]) for _, shard in results):
        raise ScenarioError("workers loaded different models: give all of them the same revision or files")
    return [shard.part for _, shard in sorted(results, key=_number)]


def _model(shard: Measurement) -> dict[str, object]:
    """Return the identity of the model and text that a worker used."""
    digests = {name: value for name, value in shard.tags.items() if name.endswith("_digest")}
    return {**digests, **{name: shard.facts.get(name) for name in _MODEL_FACTS}}


def _table(results: Sequence[ShardResult]) -> str:
    lines = ["shard\tworker\tnode\ttokens\tseconds"]
    for worker, shard in sorted(results, key=_number):
        assert isinstance(shard.part, Part)
        tokens = sum(sum(batch.tokens) for batch in shard.part.batches.values())
        node, number = shard.tags.get("node", ""), _number((worker, shard)) + 1
        lines.append(f"{number}\t{worker + 1}\t{node}\t{tokens}\t{shard.part.seconds:.3f}")
    return "\n".join(lines) + "\n"
