"""Parallel workers of an executor, which measure scenarios of one variant side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmtrack.spec.events import Event
from llmtrack.spec.scenario import Scenario

Run = Callable[[Sequence[Scenario], Callable[[Event], None]], None]


@dataclass(frozen=True)
class ParallelWorkers:
    """Parallel workers.

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


@runtime_checkable
class SideBySide(Protocol):
    """An executor with parallel workers."""

    def start_workers(self, workers: int | None) -> AbstractContextManager[ParallelWorkers]:
        """Start parallel workers, or fewer if there is no room for all.

        Args:
            workers: how many; None for the executor's choice.
        """
        ...
