"""Several executors at once, one for each loaded model, so that models can be measured in turn without loading them again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from llmtrack.run.executors import footprint
from llmtrack.run.executors.crew import Crew
from llmtrack.run.executors.inline import Executor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.spec.events import Emit, Event
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant

_NO_BACKEND = ""
# Below this share of the memory, models that were not used lately are freed.
LEAST_FREE = 0.25
# As many models at most on a GPU.
MOST_ON_GPU = 4
# Threads of the model before go on looking for work for 60 ms.
SETTLE_S = 0.1


def memory_is_short() -> bool:
    """Return whether a further model should not be loaded beside those that are there."""
    memory = psutil.virtual_memory()
    return memory.available < LEAST_FREE * memory.total


class Pool:
    """Measures each variant in an executor of its own, which keeps its loaded model while there is room.

    Args:
        make: makes an executor.
        is_full: whether memory is short.
        most: so many loaded models at most.
        fits: whether the models of variants are predicted to fit into the memory that is free.
        reuse: keep the worker of a freed model for the next variant of the same backend, whose imports it has.

    Attributes:
        spare: whether a worker is started in advance, while others measure: where CPUs are free for that.
    """

    def __init__(
        self,
        make: Callable[[], Executor],
        is_full: Callable[[], bool] = memory_is_short,
        most: float = math.inf,
        fits: Callable[..., bool] = footprint.fits,
        reuse: bool = False,
    ) -> None:
        self._make = make
        self._is_full = is_full
        self._fits = fits
        self.most = most
        self._reuse = reuse
        self.spare = False
        # By backend, those that hold no model; the one of no backend has not measured yet, and knows its machine.
        self._idle: dict[str, Executor] = {_NO_BACKEND: make()}
        # The one that was used last comes last.
        self._of: dict[Variant, Executor] = {}

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure."""
        return self._any().machine()

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Refuse what no run can mend, before a study begins."""
        self._any().check(scenarios)

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model."""
        return self._any().identify(scenario)

    def run(self, scenarios: Sequence[Scenario], emit: Emit, seconds: float = math.inf) -> None:
        """Measure scenarios of one variant, within so many seconds; what is not measured then is a failure."""
        before = next(reversed(self._of), None)
        variant = scenarios[0].variant
        executor = self._executor(variant)
        failed = False
        if isinstance(executor, ProcessExecutor):
            if before not in (None, variant):
                time.sleep(SETTLE_S)
            executor.until = time.monotonic() + seconds

        def take(event: Event) -> None:
            nonlocal failed
            failed |= isinstance(event, Failure)
            if isinstance(event, Measurement):
                footprint.keep(event)
            emit(event)

        try:
            executor.run(scenarios, take)
        finally:
            if failed and self._reuse:  # What went wrong there is not to happen to another model.
                self._of.pop(variant, None)
                executor.close()

    @contextmanager
    def crew(self, workers: int | None) -> Iterator[Crew]:
        """Open a crew of workers of this machine, each of which loads the model: what is loaded is freed first."""
        if workers is None or workers == 1:
            yield Crew((self.run,), self.close)
            return
        self.hold_only()
        executor = self._any()
        if not isinstance(executor, ProcessExecutor):
            yield Crew((self.run,), self.close)
            return
        with executor.crew(workers) as crew:
            yield crew

    def holds(self, variant: Variant) -> bool:
        """Return whether the model of a variant is loaded."""
        return variant in self._of

    def free(self, variant: Variant) -> None:
        """Free the model of a variant."""
        executor = self._of.pop(variant, None)
        if executor is None:
            return
        wanted = self._reuse and variant.backend not in self._idle
        if wanted and isinstance(executor, ProcessExecutor) and executor.free():
            self._idle[variant.backend] = executor
        else:
            executor.close()

    def has_room(self, variants: Sequence[Variant]) -> bool:
        """Return whether the models of all these variants are predicted to fit into memory at once."""
        return len(variants) <= self.most and self._fits(*(each for each in variants if not self.holds(each)))

    def hold_only(self, *variants: Variant) -> bool:
        """Free the models of all other variants; return whether there were any."""
        others = [each for each in self._of if each not in variants]
        for variant in others:
            self.free(variant)
        return bool(others)

    def close(self) -> None:
        """Free all that is loaded."""
        for executor in (*self._of.values(), *self._idle.values()):
            executor.close()
        self._of.clear()
        self._idle.clear()

    def _executor(self, variant: Variant) -> Executor:
        executor = self._of.pop(variant, None)
        if executor is None:
            while self._of and (len(self._of) >= self.most or self._is_full() or not self._fits(variant)):
                self.free(next(iter(self._of)))
            idle = variant.backend if variant.backend in self._idle else _NO_BACKEND
            executor = self._idle.pop(idle, None) or self._make()
            if self.spare and _NO_BACKEND not in self._idle:
                following = self._idle[_NO_BACKEND] = self._make()
                if isinstance(following, ProcessExecutor):
                    following.begin()
        self._of[variant] = executor
        return executor

    def _any(self) -> Executor:
        if self._of:
            return next(reversed(self._of.values()))
        if not self._idle:
            self._idle[_NO_BACKEND] = self._make()
        return next(iter(self._idle.values()))
