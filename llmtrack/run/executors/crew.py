"""Several workers that measure scenarios of one variant side by side, as an executor offers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmtrack.spec.events import Event
from llmtrack.spec.scenario import Scenario

Run = Callable[[Sequence[Scenario], Callable[[Event], None]], None]


@dataclass(frozen=True)
class Crew:
    """Workers that measure side by side.

    Attributes:
        runs: what each of them measures with, as `Executor.run`, in a thread of its own.
        stop: has all of them end soon; any thread may call it.
        all_at_once: whether a worker is to be given all that it will have at once, since it loads its model anew each time.
        retries: how often whoever asks is to try again what is lost with a worker.
    """

    runs: tuple[Run, ...]
    stop: Callable[[], None]
    all_at_once: bool = False
    retries: int = 0


@runtime_checkable
class SideBySide(Protocol):
    """An executor that can have several workers measure at once."""

    def crew(self, workers: int | None) -> AbstractContextManager[Crew]:
        """Open a crew of so many workers, or of fewer where there is no room for more at once.

        Args:
            workers: how many; None: as many as the executor finds right.
        """
        ...
