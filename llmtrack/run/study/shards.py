"""Hand the shards of a text to several workers at once, and put what they give together as if there were one."""

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
from llmtrack.host.words import plural
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.quality.figures import Drift, cut_warnings, quality_warnings
from llmtrack.quality.shards import merge, merge_drift
from llmtrack.run.executors.crew import Crew
from llmtrack.spec.events import Emit, Event, Log, Progress, Warn
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.spec.scores import Compared, Part
from llmtrack.spec.task import PerplexityTask, ShardTask

SHARDS_EACH = 32
"""Shards for each worker: so little is lost with one, and waited for at the end. Whoever is faster takes more of them."""

LOST = ("killed", "timeout")
"""Failures of a worker and not of what it did: another one may do it."""

_OF_TEXT = ("corpus", "corpus_digest", "corpus_blank_rows", "stride")
_SAME = ("model_id", "device", "dtype", "corpus_digest")

# The worker of a shard, from 0, and what it measured.
Done = tuple[int, Measurement]


def shards_of(scenario: Scenario, task: PerplexityTask, of: int) -> list[Scenario]:
    """Return the scenarios that score the shards of a text, as it is now."""
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
    """What scoring a text gave, put together from its shards.

    Attributes:
        metrics: the figures, and the speed.
        facts: which text it was, and how it was shared out.
        warnings: what the workers warn of, and what must be said of the text.
        batch_losses: mean loss of each batch, in the order of a single worker.
        batch_size: rows of the largest batch.
        listed: which worker scored which shard, where and how long, as a table of tabs.
    """

    metrics: dict[str, float]
    facts: dict[str, Scalar]
    warnings: tuple[str, ...]
    batch_losses: tuple[float, ...]
    batch_size: int
    listed: str


def figures_together(task: PerplexityTask, done: Sequence[Done]) -> Together:
    """Return what the shards of a text make together.

    Its speed is that of all workers: the text's tokens in the time of the one that scored longest, each one's time
    being that of its shards. Loading, and what was lost and done again, are no part of it.

    Args:
        task: the convention.
        done: what each shard gave, in any order.

    Raises:
        ScenarioError: the shards do not make the text, or are not of one model.
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
        listed=_listed(done),
    )


def put_together(scenario: Scenario, task: PerplexityTask, done: Sequence[Done]) -> Measurement:
    """Return the measurement of a text from those of its shards; see `figures_together`."""
    found = figures_together(task, done)
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
        started_at=min(each.started_at for each in shards),
        ended_at=max(each.ended_at for each in shards),
        texts={**first.texts, "shards.txt": found.listed},
        part=None,
    )


def drift_together(done: Sequence[Done]) -> tuple[Drift, dict[str, str]]:
    """Return how far a model is from the reference by the shards that were compared, and the reference's digests.

    Raises:
        ScenarioError: the shards do not make what is compared, or are not of the same models.
    """
    drift = merge_drift([part for part in _parts(done) if isinstance(part, Compared)])
    tags = done[0][1].tags
    return drift, {name: value for name, value in tags.items() if name.startswith(REFERENCE_TAG_PREFIX)}


def work_off(scenario: Scenario, shards: Sequence[Scenario], crew: Crew, emit: Emit) -> list[Done] | Failure:
    """Have a crew measure shards, and return what each gave, or why there is no result.

    Args:
        scenario: what they are shards of, which progress and a failure are told of.
        shards: see `shards_of`.
        crew: what measures; a shard that is lost with one of its workers is done again.
        emit: is told how it goes, in this thread only.
    """
    work = _Work(scenario, shards, crew)
    left = len(crew.runs)

    def ended(future: Future[None]) -> None:
        nonlocal left
        left -= 1
        future.result()

    with ThreadPoolExecutor(left, "llmtrack-shards") as pool:
        try:
            for number in range(left):
                future = pool.submit(work.work_off, number)
                future.add_done_callback(lambda done: work.told.put(partial(ended, done)))
            said: set[str] = set()
            while left:
                told = work.told.get()
                if callable(told):
                    told()
                    continue
                # What each worker says alike, such as which model it loaded, is said once.
                if isinstance(told, (Log, Warn)):
                    if told.text in said:
                        continue
                    said.add(told.text)
                emit(told)
        except BaseException:
            work.stop()
            crew.stop()
            raise
    return work.failure or list(work.done.values())


class _Work:
    """The shards of a text, what is to be done of them and what came of it; any thread may call it."""

    def __init__(self, scenario: Scenario, shards: Sequence[Scenario], crew: Crew) -> None:
        self.done: dict[str, Done] = {}
        self.failure: Failure | None = None
        self.told: queue.SimpleQueue[Event | partial[None]] = queue.SimpleQueue()
        self._scenario, self._crew = scenario, crew
        self._shards = {each.name: each for each in shards}
        self._todo = deque(self._shards.values())
        self._tries = dict.fromkeys(self._shards, 0)
        self._shares = dict.fromkeys(self._shards, 0.0)
        self._stopped = False
        self._lock = threading.Lock()

    def work_off(self, worker: int) -> None:
        """Have a worker score shards until none is left."""
        while shards := self._take():
            self._crew.runs[worker](shards, partial(self._tell, worker))

    def stop(self) -> None:
        """Hand out no more shards."""
        with self._lock:
            self._stopped = True
            self._todo.clear()

    def _take(self) -> tuple[Scenario, ...]:
        with self._lock:
            most = -(-len(self._shards) // len(self._crew.runs)) if self._crew.all_at_once else 1
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
                step = f"{len(self.done)}/{len(self._shards)} shards, {len(self._crew.runs)} workers"
                event = Progress(self._scenario.name, step, sum(self._shares.values()) / len(self._shards))
        self.told.put(event)

    @property
    def _ending(self) -> bool:
        return self._stopped or self.failure is not None

    def _lose(self, failure: Failure) -> Event:
        """Have a shard that is lost with its worker done again, a few times; any other failure is that of all."""
        name = failure.scenario.name
        self._tries[name] += 1
        self._shares[name] = 0.0
        if failure.kind in LOST and self._tries[name] <= self._crew.retries and not self._ending:
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
    """Return the number of a shard, by which they are sorted."""
    task = done[1].scenario.task
    assert isinstance(task, ShardTask)
    return task.number


def _parts(done: Sequence[Done]) -> list[Part | Compared | None]:
    """Return what shards gave, in order.

    Raises:
        ScenarioError: they are not of one model.
    """
    if any(_model(each) != _model(done[0][1]) for _, each in done):
        raise ScenarioError("workers loaded different models: give all of them the same revision or files")
    return [each.part for _, each in sorted(done, key=_number)]


def _model(shard: Measurement) -> dict[str, object]:
    """Return what tells whether two workers scored the same text by the same model."""
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
