"""Measure each variant in a worker process, so that a crash is isolated."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from llmtrack.engines.options import loaded_as
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.host.formatting import clock_text
from llmtrack.host.processes import OUT_OF_MEMORY
from llmtrack.run.executors.executor import BESIDE, ParallelWorkers, PartialResults
from llmtrack.run.executors.timeouts import STARTING, Patience
from llmtrack.run.executors.worker_process import WorkerProcess
from llmtrack.spec.events import LOADING, Emit, Progress, SoFar, event_from_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.serialization import to_json
from llmtrack.spec.task import TrainTask

SHARD_RETRIES = 2
"""Retries of work lost with one of several workers on this machine."""


class ProcessExecutor:
    """Measures each variant in a fresh worker process, which ends when another variant follows.

    A model that exhausts memory, crashes or is killed takes down only its worker, and a silent worker is killed after a
    timeout. The current scenario then fails, unless its main part is measured (`SoFar`), and the others continue in a
    new worker.
    """

    def __init__(self, patience: Patience | None = None, start: Callable[..., WorkerProcess] = WorkerProcess) -> None:
        self._patience = patience or Patience()
        self._new_worker = start
        self._worker: WorkerProcess | None = None
        self._parallel: list[ProcessExecutor] = []
        self._variant: Variant | None = None
        self._hung_loading = 0
        self._at = Progress("", STARTING)
        self.until = math.inf
        """Deadline of the worker by `time.monotonic`, even if it shows signs of life."""

    def begin(self) -> None:
        """Start a worker without waiting for its imports, which take seconds."""
        self._start()

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine, as seen by a worker.

        Raises:
            LlmtrackError: no worker can be started.
        """
        return dict(self._ask({"describe": True}, "machine", self._patience.starting))

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Check scenarios in a worker, which may download and convert models."""
        question = {"check": [to_json(scenario) for scenario in scenarios]}
        if problem := self._ask(question, "problem", self._patience.loading):
            raise UsageError(str(problem))

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Identify the model in a worker."""
        return dict(self._ask({"identify": to_json(scenario)}, "identity", self._patience.loading))

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant in its worker; end any parallel workers first."""
        self._end_parallel()
        loaded = loaded_as(scenarios[0].variant)
        if self._variant not in (None, loaded):
            self.close()
        self._variant = loaded
        self._hung_loading = 0
        waiting = {scenario.name: scenario for scenario in scenarios}
        with PartialResults(emit) as results:
            while waiting:
                started = time.time()
                self._at = Progress(next(iter(waiting)), STARTING)
                try:
                    self._follow(waiting, results)
                except _LostError as loss:
                    for lost in self._lost(waiting, loss):
                        if not results.emit_without(lost.name, loss.reason):
                            emit(Failure(lost, loss.kind, loss.reason, started_at=started, ended_at=time.time()))
                except (Exception, GeneratorExit):
                    raise
                except BaseException:
                    # A signal: first let the worker save what can be resumed.
                    current = waiting.get(self._at.scenario)
                    if current is not None and isinstance(current.task, TrainTask):
                        self._end_in_order(results)
                    raise

    def free(self) -> bool:
        """Free the loaded model but keep the worker with its imports; return whether it lives."""
        if self._worker is None or not self._worker.lives():
            return False
        try:
            self._ask({"free": True}, "freed", self._patience.starting)
        except LlmtrackError:
            return False
        self._variant = None
        return True

    def close(self) -> None:
        """End the worker."""
        worker, self._worker, self._variant = self._worker, None, None
        if worker is not None:
            worker.end()
        self._end_parallel()

    @contextmanager
    def start_workers(self, workers: int | None) -> Iterator[ParallelWorkers]:
        """Start worker processes that share this machine's threads; end this executor's own worker first.

        They keep their model loaded for the next call with the same number of workers, until something is measured
        alone.

        Args:
            workers: how many; None for one.
        """
        if workers is None or workers == 1:
            yield ParallelWorkers((self.run,), self.close)
            return
        if len(self._parallel) != workers:
            threads = max(1, int(self.machine().get("threads", 1)) // workers)
            self.close()
            start = partial(self._new_worker, threads)
            self._parallel = [ProcessExecutor(self._patience, start) for _ in range(workers)]
        try:
            for executor in self._parallel:
                executor.begin()
            runs = tuple(executor.run for executor in self._parallel)
            yield ParallelWorkers(runs, self._end_parallel, retries=SHARD_RETRIES)
        except BaseException:
            self._end_parallel()
            raise

    def _end_parallel(self) -> None:
        parallel, self._parallel = self._parallel, []
        for executor in parallel:
            executor.close()

    def _follow(self, waiting: dict[str, Scenario], emit: Emit) -> None:
        """Run the worker on the waiting scenarios, removing each that ends, until it is done.

        Raises:
            _LostError: it died or fell silent.
        """
        worker = self._start()
        worker.send({"measure": [to_json(scenario) for scenario in waiting.values()]})
        while True:
            try:
                seconds = self._patience.seconds(self._at, waiting.values())
                message = worker.receive(min(seconds, max(self.until - time.monotonic(), 0.0)))
            except TimeoutError:
                if time.monotonic() >= self.until:
                    raise _LostError("timeout", f"out of time (at: {self._at.step})") from None
                raise _LostError(
                    "timeout",
                    f"no sign of life for {clock_text(seconds)} (at: {self._at.step}), so it was given up: find out "
                    "what hangs, or raise time_limit",
                ) from None
            if message is None:
                raise _LostError("killed", worker.death())
            if "done" in message and waiting:
                raise _LostError("error", "the worker finished without reporting all outcomes")
            if "done" in message:
                return
            if "event" not in message:
                self._at = replace(self._at, step=LOADING)
                continue
            event = event_from_json(message["event"])
            if isinstance(event, Progress):
                self._at = event
            elif isinstance(event, SoFar):
                self._at = Progress(event.measurement.scenario.name, BESIDE)
            elif isinstance(event, (Measurement, Failure)):
                waiting.pop(event.scenario.name, None)
            emit(event)

    def _lost(self, waiting: dict[str, Scenario], loss: _LostError) -> list[Scenario]:
        """Remove and return the scenarios lost with the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()
        if loss.kind == "timeout" and self._at.step.startswith((STARTING, LOADING)):
            self._hung_loading += 1
            if self._hung_loading > 1:  # After two hangs, assume that the others would hang, too.
                lost = list(waiting.values())
                waiting.clear()
                return lost
        # Died between two scenarios: the last one reported is complete.
        return [waiting.pop(self._at.scenario, None) or waiting.pop(next(iter(waiting)))]

    def _end_in_order(self, emit: Emit) -> None:
        worker = self._worker
        assert worker is not None
        worker.ask_to_end()
        until = time.monotonic() + self._patience.ending
        with contextlib.suppress(TimeoutError):
            while (message := worker.receive(until - time.monotonic())) is not None:
                if "event" in message:
                    emit(event_from_json(message["event"]))

    def _ask(self, question: object, key: str, seconds: float) -> Any:
        """Send a question and return the answer under a key."""
        worker = self._start()
        worker.send(question)
        try:
            message: dict[str, Any] | None = {}
            while message is not None and key not in message:
                message = worker.receive(seconds)
        except TimeoutError:
            self.close()
            raise LlmtrackError(
                f"the worker process was silent for {clock_text(seconds)} while starting: see "
                "`llmtrack doctor`, and whether the disk or a GPU's driver hangs"
            ) from None
        if message is None:
            code = worker.exit_code()
            self._worker = None
            raise LlmtrackError(_early_death(code))
        return message[key]

    def _start(self) -> WorkerProcess:
        if self._worker is None or not self._worker.lives():
            self._worker = self._new_worker()
        return self._worker


def _early_death(code: int | None) -> str:
    if code in (-signal.SIGKILL, OUT_OF_MEMORY):
        ending = "was killed" if code == -signal.SIGKILL else "ended"
        likely = "most likely " if code == -signal.SIGKILL else ""
        return (
            f"the worker process {ending} before it could start, {likely}for lack of memory: free some, or raise the limit of "
            "the container, job or shell"
        )
    return (
        f"the worker process ended with exit code {code} before it could start: see its last lines above, and "
        "`llmtrack doctor`"
    )


class _LostError(Exception):
    """A worker died, losing its current scenario."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason
