"""The interface of an executor, and what executors share: parallel workers, and keeping partial results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, runtime_checkable

from llmtrack.spec.events import Emit, Event, SoFar
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario

METHODS = ("machine", "check", "identify", "run", "close")
"""Methods of every executor."""

INTERRUPTED = "it was interrupted"
"""Why a measurement is incomplete."""

BESIDE = "what is measured beside it"
"""Step of a worker after the main part of a measurement (`SoFar`)."""


class Executor(Protocol):
    """Measures groups of scenarios that share a variant."""

    def machine(self) -> Mapping[str, str]:
        """Return facts about the measuring machine and installation (see `worker.machine.describe`)."""
        ...

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Reject unusable scenarios before a study starts (see `worker.identity.check`).

        Raises:
            LlmtrackError: a backend, option, corpus or model is unusable.
        """
        ...

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the model tags that a run of a scenario would have (see `worker.identity.identify`)."""
        ...

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant; emit a Measurement or a Failure for each as it ends."""
        ...

    def close(self) -> None:
        """Free what is loaded."""
        ...


@runtime_checkable
class ManyAtOnce(Executor, Protocol):
    """Measures several groups concurrently, each in a thread that calls `run`."""

    at_once: int
    """Maximum number of concurrent groups."""

    where: str
    """Description of its hardware."""

    def stop(self) -> None:
        """Request cancellation; keep partial results that can be resumed."""
        ...


@runtime_checkable
class SideBySide(Protocol):
    """An executor with parallel workers, which measure scenarios of one variant."""

    def start_workers(self, workers: int | None) -> AbstractContextManager[ParallelWorkers]:
        """Start parallel workers, or fewer if there is no room for all; None for the executor's choice of how many."""
        ...


Run = Callable[[Sequence[Scenario], Emit], None]


@dataclass(frozen=True)
class ParallelWorkers:
    """Workers that measure scenarios of one variant side by side.

    Attributes:
        runs: one function per worker, like `Executor.run`, to call in a thread of its own.
        stop: request cancellation; thread-safe.
        all_at_once: whether to give a worker all of its work in one call, because it reloads its model for each.
        retries: how often the caller should retry work lost with a worker.
    """

    runs: tuple[Run, ...]
    stop: Callable[[], None]
    all_at_once: bool = False
    retries: int = 0


class PartialResults:
    """Forwards events, but holds each `SoFar` until the outcome of its scenario arrives or is lost.

    As a context manager, it emits what it holds if it is left by an exception.

    Args:
        emit: receives the other events, and held measurements whose outcome is lost.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held: dict[str, Measurement] = {}

    def __enter__(self) -> PartialResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for name in tuple(self._held):
                self.emit_without(name, INTERRUPTED)

    @property
    def held(self) -> tuple[Measurement, ...]:
        """Measurements that wait for their outcome."""
        return tuple(self._held.values())

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, SoFar):
            self._held[event.measurement.scenario.name] = event.measurement
            return
        if isinstance(event, (Measurement, Failure)):
            self._held.pop(event.scenario.name, None)
        self._emit(event)

    def emit_without(self, name: str, reason: str) -> bool:
        """Emit a scenario's held measurement with a warning about what is missing; return whether there was one."""
        held = self._held.pop(name, None)
        if held is None:
            return False
        warning = f"what is measured after it is missing: {reason}"
        self._emit(replace(held, warnings=(*held.warnings, warning)))
        return True
