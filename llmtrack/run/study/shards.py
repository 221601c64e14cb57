"""Distribute the shards of a text to several workers, and merge the results as if there were one."""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import plural
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.quality.metrics import Drift, cut_warnings, quality_warnings
from llmtrack.quality.shards import merge, merge_drift
from llmtrack.run.executors.executor import ParallelWorkers
from llmtrack.spec.events import Emit, Event, Log, Progress, Warn
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.spec.scores import Compared, Item, Part
from llmtrack.spec.task import PerplexityTask, ShardTask

SHARDS_EACH = 32
"""Shards per worker: small enough to lose or wait for little; faster workers take more of them."""

LOST = ("killed", "timeout")
"""Failures of the worker rather than of the work, which another worker may do."""

_OF_TEXT = ("corpus", "corpus_digest", "corpus_blank_rows", "stride")
_SAME = ("model_id", "device", "dtype", "corpus_digest")

# Worker number from 0, and its measurement of a shard.
Done = tuple[int, Measurement]


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


@dataclass(frozen=True)
class Together:
    """Merged scores of a text.

    Attributes:
        metrics: the scores and the speed.
        facts: the text, and how it was distributed.
        warnings: of the workers and about the text.
        batch_losses: mean loss of each batch, in the order of a single worker.
        batch_size: rows of the largest batch.
        items: results of the first documents.
        listed: tab-separated table of each shard's worker, node and duration.
    """

    metrics: dict[str, float]
    facts: dict[str, Scalar]
    warnings: tuple[str, ...]
    batch_losses: tuple[float, ...]
    batch_size: int
    items: tuple[Item, ...]
    listed: str


def merge_figures(task: PerplexityTask, done: Sequence[Done]) -> Together:
    """Merge the scores of a text's shards.

    The speed is that of all workers together: the text's tokens over the time of the worker that scored longest, summed
    over its shards. Loading, and lost work, do not count.

    Args:
        task: the convention.
        done: results of the shards, in any order.

    Raises:
        ScenarioError: the shards are incomplete, or of different models.
    """
    parts = [part for part in _parts(done) if isinstance(part, Part)]
    quality = merge(parts)
    seconds: dict[int, float] = {}
    for (worker, _), part in zip(sorted(done, key=_number), parts, strict=True):
        seconds[worker] = seconds.get(worker, 0.0) + part.seconds
    longest = max(seconds.values())
    said = dict.fromkeys(line for _, each in sorted(done, key=_number) for line in each.warnings)
    facts = done[0][1].facts
    return Together(
        metrics=quality.figures | ({"score_tokens_per_sec": quality.tokens_scored / longest} if longest > 0 else {}),
        facts={name: facts[name] for name in _OF_TEXT if name in facts} | quality.facts | {"shards": len(done)},
        warnings=(*said, *quality_warnings(quality), *cut_warnings(quality, task)),
        batch_losses=quality.batch_losses,
        batch_size=quality.batch_size,
        items=quality.items,
        listed=_listed(done),
    )


def merge_shards(scenario: Scenario, task: PerplexityTask, done: Sequence[Done]) -> Measurement:
    """Merge the measurements of a text's shards; see `merge_figures`."""
    found = merge_figures(task, done)
    shards = [each for _, each in sorted(done, key=_number)]
    first = shards[0]
    metrics = {**first.metrics, **found.metrics}
    for name in ("load_time_s", "peak_memory_mib"):
        if known := [each.metrics[name] for each in shards if name in each.metrics]:
            metrics[name] = max(known)
    nodes = dict.fromkeys(each.tags["node"] for each in shards if "node" in each.tags)
    workers = len({worker for worker, _ in done})
    return replace(
        first,
        scenario=scenario,
        metrics=metrics,
        facts={**first.facts, **found.facts, "batch_size": found.batch_size, "workers": workers},
        warnings=found.warnings,
        tags={**first.tags, **({"node": ", ".join(nodes)} if nodes else {})},
        series={**first.series, "batch_loss": found.batch_losses},
        items=found.items,
        started_at=min(each.started_at for each in shards),
        ended_at=max(each.ended_at for each in shards),
        texts={**first.texts, "shards.txt": found.listed},
        part=None,
    )


def merge_drifts(done: Sequence[Done]) -> tuple[Drift, dict[str, str]]:
    """Merge the comparison with the reference from its shards; return it with the reference's digests.

    Raises:
        ScenarioError: the shards are incomplete, or of different models.
    """
    drift = merge_drift([part for part in _parts(done) if isinstance(part, Compared)])
    tags = done[0][1].tags
    return drift, {name: value for name, value in tags.items() if name.startswith(REFERENCE_TAG_PREFIX)}


def work_off(
    scenario: Scenario, shards: Sequence[Scenario], parallel: ParallelWorkers, emit: Emit
) -> list[Done] | Failure:
    """Measure shards with several workers; return the result of each, or a failure.

    Args:
        scenario: the whole, which progress and failures refer to.
        shards: see `shards_of`.
        parallel: the workers; a shard lost with a worker is retried.
        emit: receives events, in this thread only.
    """
    work = _Work(scenario, shards, parallel)
    left = len(parallel.runs)

    def ended(future: Future[None]) -> None:
        nonlocal left
        left -= 1
        future.result()

    with ThreadPoolExecutor(left, "llmtrack-shards") as pool:
        try:
            for number in range(left):
                future = pool.submit(work.work_off, number)
                future.add_done_callback(lambda done: work.events.put(partial(ended, done)))
            said: set[str] = set()
            while left:
                event = work.events.get()
                if callable(event):
                    event()
                    continue
                # Messages common to all workers, such as the loaded model, are emitted once.
                if isinstance(event, (Log, Warn)):
                    if event.text in said:
                        continue
                    said.add(event.text)
                emit(event)
        except BaseException:
            work.stop()
            parallel.stop()
            raise
    return work.failure or list(work.done.values())


class _Work:
    """Shards to do and their results; thread-safe."""

    def __init__(self, scenario: Scenario, shards: Sequence[Scenario], parallel: ParallelWorkers) -> None:
        self.done: dict[str, Done] = {}
        self.failure: Failure | None = None
        self.events: queue.SimpleQueue[Event | partial[None]] = queue.SimpleQueue()
        self._scenario, self._parallel = scenario, parallel
        self._shards = {each.name: each for each in shards}
        self._todo = deque(self._shards.values())
        self._tries = dict.fromkeys(self._shards, 0)
        self._shares = dict.fromkeys(self._shards, 0.0)
        self._stopped = False
        self._lock = threading.Lock()

    def work_off(self, worker: int) -> None:
        """Let a worker score shards until none is left."""
        while shards := self._take():
            self._parallel.runs[worker](shards, partial(self._tell, worker))

    def stop(self) -> None:
        """Hand out no more shards."""
        with self._lock:
            self._stopped = True
            self._todo.clear()

    def _take(self) -> tuple[Scenario, ...]:
        with self._lock:
            most = -(-len(self._shards) // len(self._parallel.runs)) if self._parallel.all_at_once else 1
            return tuple(self._todo.popleft() for _ in range(min(most, len(self._todo))))

    def _tell(self, worker: int, event: Event) -> None:
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
        self.events.put(event)

    @property
    def _ending(self) -> bool:
        return self._stopped or self.failure is not None

    def _lose(self, failure: Failure) -> Event:
        """Requeue a shard lost with its worker, up to a limit; any other failure fails the whole."""
        name = failure.scenario.name
        self._tries[name] += 1
        self._shares[name] = 0.0
        if failure.kind in LOST and self._tries[name] <= self._parallel.retries and not self._ending:
            self._todo.append(self._shards[name])
            return Log(f"  {name}: {failure.reason}; it is scored again")
        if self.failure is None:
            reason = failure.reason
            if self._tries[name] > 1:
                reason = f"lost {plural(self._tries[name], 'time')}: {reason}"
            shard = name.removeprefix(self._scenario.name).strip(" []")
            self.failure = replace(failure, scenario=self._scenario, reason=f"{shard}: {reason}")
        self._todo.clear()
        return failure


def _number(done: Done) -> int:
    """Return the sort key of a shard's result."""
    task = done[1].scenario.task
    assert isinstance(task, ShardTask)
    return task.number


def _parts(done: Sequence[Done]) -> list[Part | Compared | None]:
    """Return the shards' results in order.

    Raises:
        ScenarioError: the workers loaded different models.
    """
    if any(_model(each) != _model(done[0][1]) for _, each in done):
        raise ScenarioError("workers loaded different models: give all of them the same revision or files")
    return [each.part for _, each in sorted(done, key=_number)]


def _model(shard: Measurement) -> dict[str, object]:
    """Return the identity of the model and text that a worker used."""
    digests = {name: value for name, value in shard.tags.items() if name.endswith("_digest")}
    return {**digests, **{name: shard.facts.get(name) for name in _SAME}}


def _listed(done: Sequence[Done]) -> str:
    lines = ["shard\tworker\tnode\ttokens\tseconds"]
    for worker, each in sorted(done, key=_number):
        assert isinstance(each.part, Part)
        tokens = sum(sum(batch.tokens) for batch in each.part.batches.values())
        node, number = each.tags.get("node", ""), _number((worker, each)) + 1
        lines.append(f"{number}\t{worker + 1}\t{node}\t{tokens}\t{each.part.seconds:.3f}")
    return "\n".join(lines) + "\n"
