"""Where scenarios are measured: in this process, or in a worker process per variant."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from llmtrack.child import environment
from llmtrack.engines.base import Engine
from llmtrack.errors import LlmtrackError
from llmtrack.run.events import Event, Progress, event_from_json
from llmtrack.scenario import Failure, Measurement, Scenario, TrainTask, Variant, to_json

END_SECONDS = 120.0
"""How long a worker may take to end its step and keep a checkpoint when a signal has come."""

Emit = Callable[[Event], None]


class Executor(Protocol):
    """Measures groups of scenarios that share a variant."""

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure (see `run.machine.describe`)."""
        ...

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model (see `run.identity.identify`)."""
        ...

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant; emit a Measurement or a Failure for each as it ends."""
        ...

    def close(self) -> None:
        """Free what is loaded."""
        ...


class InlineExecutor:
    """Measures in this process: for tests, debuggers and notebooks.

    Args:
        load: turns a variant into an engine; by default through the installed backends. One of its own knows which
            model it loads, so the files that a scenario names tell nothing of it.
        clock: times it.
    """

    def __init__(
        self,
        load: Callable[[Variant], Engine] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        from llmtrack.engines.registry import load_variant
        from llmtrack.run.measuring import EngineCache

        self._engines = EngineCache(load or load_variant)
        self._by_files = load is None
        self._clock = clock

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure."""
        from llmtrack.run.machine import describe

        return describe()

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model."""
        from llmtrack.run.identity import identify

        return identify(scenario) if self._by_files else {}

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant, one after the other."""
        from llmtrack.run.measuring import measure_group

        measure_group(scenarios, self._engines, emit, self._clock)

    def close(self) -> None:
        """Free the engine."""
        self._engines.close()


class ProcessExecutor:
    """Measures in a fresh worker process per variant, which ends when another variant comes.

    A model that fills the memory, crashes or is killed takes only its worker along. The scenario that was
    being measured then becomes a Failure, and the others go on in a new worker.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None
        self._variant: Variant | None = None

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure, as a worker sees them."""
        return dict(self._ask({"describe": True})["machine"])

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model, as a worker finds them."""
        return dict(self._ask({"identify": to_json(scenario)})["identity"])

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant in its worker."""
        if self._variant not in (None, scenarios[0].variant):
            self.close()
        self._variant = scenarios[0].variant
        waiting = {scenario.name: scenario for scenario in scenarios}
        while waiting:
            started, current = time.time(), next(iter(waiting))
            self._start()
            self._send({"measure": [to_json(scenario) for scenario in waiting.values()]})
            try:
                for event in self._events():
                    if isinstance(event, Progress):
                        current = event.scenario
                    elif isinstance(event, (Measurement, Failure)):
                        waiting.pop(event.scenario.name)
                    emit(event)
            except (Exception, GeneratorExit):
                raise
            except BaseException:
                # A signal: what can be taken up again later is kept first.
                if current in waiting and isinstance(waiting[current].task, TrainTask):
                    self._end_in_order(emit)
                raise
            if waiting and self._worker is not None:
                reason = _death(self._worker.wait())
                self._worker = None
                # Dead between two scenarios: the one that is told of last has its outcome already.
                lost = waiting.pop(current, None) or waiting.pop(next(iter(waiting)))
                emit(Failure(lost, "killed", reason, started_at=started, ended_at=time.time()))

    def close(self) -> None:
        """End the worker."""
        worker, self._worker, self._variant = self._worker, None, None
        if worker is None:
            return
        worker.kill()
        worker.wait()

    def _end_in_order(self, emit: Emit) -> None:
        """Ask the worker to keep what it has, and pass on what it tells until it has ended."""
        assert self._worker is not None
        assert self._worker.stdout is not None
        # `mlflow run` passes Ctrl-C on as SIGTERM too; a second Ctrl-C of the user's still ends the wait.
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        too_long = threading.Timer(END_SECONDS, self._worker.kill)
        too_long.start()
        try:
            self._worker.terminate()
            for line in self._worker.stdout:
                with contextlib.suppress(ValueError, KeyError):  # torn by the signal
                    message = json.loads(line)
                    emit(event_from_json(message["event"]))
        finally:
            too_long.cancel()
            signal.signal(signal.SIGTERM, before)

    def _start(self) -> subprocess.Popen[str]:
        if self._worker is None or self._worker.poll() is not None:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "llmtrack.run.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment(),
            )
        return self._worker

    def _send(self, job: object) -> None:
        assert self._worker is not None
        assert self._worker.stdin is not None
        try:
            self._worker.stdin.write(json.dumps(job) + "\n")
            self._worker.stdin.flush()
        except BrokenPipeError:
            pass  # a worker that died is noticed, and reported, when its events are read

    def _ask(self, question: object) -> dict[str, Any]:
        """Return what a worker answers in one line."""
        worker = self._start()
        self._send(question)
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise LlmtrackError(
                f"the worker process ended with exit code {worker.wait()} before it could start: see its last lines "
                "above, and `llmtrack doctor`"
            )
        return dict(json.loads(line))

    def _events(self) -> Iterator[Event]:
        """Yield what the worker tells until it is done with its job, or dead."""
        assert self._worker is not None
        assert self._worker.stdout is not None
        for line in self._worker.stdout:
            message = json.loads(line)
            if "done" in message:
                return
            yield event_from_json(message["event"])


def _death(exit_code: int) -> str:
    """Say in words how a worker ended."""
    if exit_code == -signal.SIGKILL:
        return "the worker was killed (SIGKILL), most likely by the system for lack of memory: use a smaller model, dtype or batch"
    if exit_code < 0:
        return f"the worker was ended by signal {signal.Signals(-exit_code).name}"
    return f"the worker ended with exit code {exit_code} in the middle of the measurement"
