"""Score a text in shards by several workers at once, and put what they give together as if one had scored it."""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from llmtrack.errors import ScenarioError
from llmtrack.events import Event, Log, Progress, Warn
from llmtrack.outcome import Failure, Measurement
from llmtrack.quality.figures import cut_warnings, quality_warnings
from llmtrack.quality.shards import merge
from llmtrack.run.crew import Crew, SideBySide
from llmtrack.run.executors import Emit, Executor
from llmtrack.scenario import Scenario
from llmtrack.task import PerplexityTask, ShardTask
from llmtrack.words import plural
from llmtrack.worker.outcomes import failure_of

SHARDS_EACH = 32
"""Shards for each worker: so little is lost with one, and waited for at the end. Whoever is faster takes more of them."""

LOST = ("killed", "timeout")
"""Failures of a worker and not of what it did: another one may do it."""

_SAME = ("model_id", "device", "dtype", "corpus_digest")


def run_scenarios(executor: Executor, scenarios: Sequence[Scenario], emit: Emit) -> None:
    """Measure scenarios of one variant; a text that several workers are asked to score is scored by them together.

    Emits a Measurement or a Failure for each, as `Executor.run` does, in this thread only.
    """
    shared = [each for each in scenarios if isinstance(each.task, PerplexityTask) and each.task.workers != 1]
    alone = [each for each in scenarios if each not in shared]
    if alone:
        executor.run(tuple(alone), emit)
    for each in shared:
        assert isinstance(each.task, PerplexityTask)
        if not isinstance(executor, SideBySide):
            emit(Warn("this executor has one worker, which scores all of the text"))
            executor.run((each,), emit)
            continue
        with executor.crew(each.task.workers) as crew:
            if each.task.workers is not None and len(crew.runs) < each.task.workers:
                emit(Warn(f"{plural(len(crew.runs), 'worker')}, since there is room for no more at once"))
            if len(crew.runs) == 1:
                crew.runs[0]((each,), emit)
            else:
                _score(each, each.task, crew, emit)


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


def put_together(
    scenario: Scenario, task: PerplexityTask, done: Sequence[tuple[int, Measurement]]
) -> Measurement:
    """Return the measurement of a text from those of its shards.

    Its speed is that of all workers together: the text's tokens in the time of the one that scored longest, each one's time
    being that of its shards. Loading, and what was lost and done again, are no part of it.

    Args:
        scenario: what was asked.
        task: its task.
        done: the worker of each shard, from 0, and what it measured, in any order.

    Raises:
        ScenarioError: the shards do not make the text, or are not of one model.
    """
    shards = [each for _, each in sorted(done, key=lambda pair: _number(pair[1]))]
    first = shards[0]
    for each in shards:
        if _model(each) != _model(first):
            raise ScenarioError(
                "workers loaded different models: give all of them the same revision or files"
            )
    parts = [each.part for each in shards if each.part is not None]
    quality = merge(parts)
    seconds: dict[int, float] = {}
    for worker, each in done:
        seconds[worker] = seconds.get(worker, 0.0) + (each.part.seconds if each.part else 0.0)
    metrics = {**first.metrics, **quality.figures}
    for name in ("load_time_s", "peak_memory_mib"):
        if found := [each.metrics[name] for each in shards if name in each.metrics]:
            metrics[name] = max(found)
    if longest := max(seconds.values()):
        metrics["score_tokens_per_sec"] = quality.tokens_scored / longest
    nodes = dict.fromkeys(each.tags["node"] for each in shards if "node" in each.tags)
    said = dict.fromkeys(line for each in shards for line in each.warnings)
    return replace(
        first,
        scenario=scenario,
        metrics=metrics,
        facts={
            **first.facts,
            **quality.facts,
            "batch_size": quality.batch_size,
            "workers": len(seconds),
            "shards": len(shards),
        },
        warnings=(*said, *quality_warnings(quality), *cut_warnings(quality, task)),
        tags={**first.tags, **({"node": ", ".join(nodes)} if nodes else {})},
        series={**first.series, "batch_loss": quality.batch_losses},
        started_at=min(each.started_at for each in shards),
        ended_at=max(each.ended_at for each in shards),
        texts={**first.texts, "shards.txt": _listed(done)},
        part=None,
    )


def _score(scenario: Scenario, task: PerplexityTask, crew: Crew, emit: Emit) -> None:
    work = _Work(scenario, task, crew)
    workers = len(crew.runs)
    emit(Log(f"  {scenario.name}: scoring {task.corpus} in {work.of} shards by {workers} workers ..."))
    left = workers

    def ended(future: Future[None]) -> None:
        nonlocal left
        left -= 1
        future.result()

    with ThreadPoolExecutor(workers, "llmtrack-shards") as pool:
        try:
            for number in range(workers):
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
    emit(work.outcome())


class _Work:
    """The shards of a text, what is to be done of them and what came of it; any thread may call it."""

    def __init__(self, scenario: Scenario, task: PerplexityTask, crew: Crew) -> None:
        self.of = SHARDS_EACH * len(crew.runs)
        self.told: queue.SimpleQueue[Event | partial[None]] = queue.SimpleQueue()
        self._scenario, self._task, self._crew = scenario, task, crew
        self._shards = {each.name: each for each in shards_of(scenario, task, self.of)}
        self._todo = deque(self._shards.values())
        self._tries = dict.fromkeys(self._shards, 0)
        self._shares = dict.fromkeys(self._shards, 0.0)
        self._done: dict[str, tuple[int, Measurement]] = {}
        self._failure: Failure | None = None
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

    def outcome(self) -> Measurement | Failure:
        """Return what came of all shards, none being worked on any more."""
        if self._failure is not None:
            return self._failure
        try:
            return put_together(self._scenario, self._task, list(self._done.values()))
        except ScenarioError as error:
            began = min(each.started_at for _, each in self._done.values())
            return failure_of(self._scenario, error, began)

    def _take(self) -> tuple[Scenario, ...]:
        with self._lock:
            most = SHARDS_EACH if self._crew.all_at_once else 1
            return tuple(self._todo.popleft() for _ in range(min(most, len(self._todo))))

    def _tell(self, worker: int, event: Event) -> None:
        with self._lock:
            if isinstance(event, Measurement):
                self._done[event.scenario.name] = (worker, event)
                self._shares[event.scenario.name] = 1.0
            elif isinstance(event, Failure):
                event = self._lose(event)
            elif isinstance(event, Progress) and event.done is not None:
                self._shares[event.scenario] = event.done
            if isinstance(event, (Measurement, Failure, Progress)):
                step = f"{len(self._done)}/{self.of} shards, {len(self._crew.runs)} workers"
                event = Progress(self._scenario.name, step, sum(self._shares.values()) / self.of)
        self.told.put(event)

    @property
    def _ending(self) -> bool:
        return self._stopped or self._failure is not None

    def _lose(self, failure: Failure) -> Event:
        """Have a shard that is lost with its worker done again, a few times; any other failure is that of all."""
        name = failure.scenario.name
        self._tries[name] += 1
        self._shares[name] = 0.0
        if failure.kind in LOST and self._tries[name] <= self._crew.retries and not self._ending:
            self._todo.append(self._shards[name])
            return Log(f"  {name}: {failure.reason}; it is scored again")
        if self._failure is None:
            reason = failure.reason
            if self._tries[name] > 1:
                reason = f"lost {plural(self._tries[name], 'time')}: {reason}"
            shard = name.removeprefix(self._scenario.name).strip(" []")
            self._failure = replace(failure, scenario=self._scenario, reason=f"{shard}: {reason}")
        self._todo.clear()
        return failure


def _number(shard: Measurement) -> int:
    assert isinstance(shard.scenario.task, ShardTask)
    return shard.scenario.task.number


def _model(shard: Measurement) -> dict[str, object]:
    """Return what tells whether two workers scored the same text by the same model."""
    digests = {name: value for name, value in shard.tags.items() if name.endswith("_digest")}
    return {**digests, **{name: shard.facts.get(name) for name in _SAME}}


def _listed(done: Sequence[tuple[int, Measurement]]) -> str:
    """Return which worker scored which shard, where and how long, as a table of tabs."""
    lines = ["shard\tworker\tnode\ttokens\tseconds"]
    for worker, each in sorted(done, key=lambda pair: _number(pair[1])):
        assert each.part is not None
        tokens = sum(sum(batch.tokens) for batch in each.part.batches.values())
        node = each.tags.get("node", "")
        lines.append(f"{_number(each) + 1}\t{worker + 1}\t{node}\t{tokens}\t{each.part.seconds:.3f}")
    return "\n".join(lines) + "\n"
