"""A pool of executors, one per loaded model, so that models can be interleaved without reloading."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from llmtrack.engines.options import loaded_as
from llmtrack.run.executors import footprint
from llmtrack.run.executors.executor import Executor, ParallelWorkers
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.spec.events import Emit, Event
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant

LEAST_FREE = 0.25
"""Free the least recently used models while less than this share of the memory is free."""

MOST_ON_GPU = 4
"""Maximum number of loaded models on a GPU."""

SETTLE_S = 0.1
"""Pause before another model: OpenMP threads of the previous one spin for 60 ms."""

_NO_BACKEND = ""


def memory_is_short() -> bool:
    """Return whether too little memory is free for a further model."""
    memory = psutil.virtual_memory()
    return memory.available < LEAST_FREE * memory.total


class Pool:
    """Measures each variant in an executor of its own, which keeps the model loaded while there is room.

    Args:
        fits: whether variants are predicted to fit into the free memory.
        reuse: keep a freed worker, with its imports, for the next variant of the same backend.

    Attributes:
        spare: whether to prestart a worker while others measure, if CPUs are free.
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
        # By backend; the one without a backend has not measured yet and has described its machine.
        self._idle: dict[str, Executor] = {_NO_BACKEND: make()}
        # By loaded model (`loaded_as`), in the order of last use.
        self._loaded: dict[Variant, Executor] = {}

    def machine(self) -> Mapping[str, str]:
        """See `Executor.machine`."""
        return self._any().machine()

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """See `Executor.check`."""
        self._any().check(scenarios)

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """See `Executor.identify`."""
        return self._any().identify(scenario)

    def run(self, scenarios: Sequence[Scenario], emit: Emit, seconds: float = math.inf) -> None:
        """Measure scenarios of one variant within a time limit; those not measured by then fail."""
        last = next(reversed(self._loaded), None)
        model = loaded_as(scenarios[0].variant)
        executor = self._executor(scenarios[0].variant)
        failed = False
        if isinstance(executor, ProcessExecutor):
            if last not in (None, model):
                time.sleep(SETTLE_S)
            executor.until = time.monotonic() + seconds

        def on_event(event: Event) -> None:
            nonlocal failed
            failed |= isinstance(event, Failure)
            if isinstance(event, Measurement):
                footprint.record(event)
            emit(event)

        try:
            executor.run(scenarios, on_event)
        finally:
            if failed and self._reuse:  # Do not let the failure affect another model.
                self._loaded.pop(model, None)
                executor.close()

    @contextmanager
    def start_workers(self, workers: int | None) -> Iterator[ParallelWorkers]:
        """Start parallel workers on this machine, each with its own model; free loaded models first."""
        executor = None
        if workers not in (None, 1):
            self.hold_only()
            executor = self._any()
        if isinstance(executor, ProcessExecutor):
            with executor.start_workers(workers) as parallel:
                yield parallel
        else:
            yield ParallelWorkers((self.run,), self.close)

    def holds(self, variant: Variant) -> bool:
        """Return whether the model of a variant is loaded."""
        return loaded_as(variant) in self._loaded

    def free(self, variant: Variant) -> None:
        """Free the model of a variant."""
        executor = self._loaded.pop(loaded_as(variant), None)
        if executor is None:
            return
        is_reusable = self._reuse and variant.backend not in self._idle
        if is_reusable and isinstance(executor, ProcessExecutor) and executor.free():
            self._idle[variant.backend] = executor
        else:
            executor.close()

    def has_room(self, variants: Sequence[Variant]) -> bool:
        """Return whether the models of all variants are predicted to fit into memory at once."""
        models = {loaded_as(variant): variant for variant in variants}
        missing = (variant for variant in models.values() if not self.holds(variant))
        return len(models) <= self.most and self._fits(*missing)

    def hold_only(self, *variants: Variant) -> bool:
        """Free the models of all other variants; return whether there were any."""
        keep = set(map(loaded_as, variants))
        others = [model for model in self._loaded if model not in keep]
        for variant in others:
            self.free(variant)
        return bool(others)

    def close(self) -> None:
        """Free all models."""
        for executor in (*self._loaded.values(), *self._idle.values()):
            executor.close()
        self._loaded.clear()
        self._idle.clear()

    def _executor(self, variant: Variant) -> Executor:
        executor = self._loaded.pop(loaded_as(variant), None)
        if executor is None:
            while self._loaded and (len(self._loaded) >= self.most or self._is_full() or not self._fits(variant)):
                self.free(next(iter(self._loaded)))
            backend = variant.backend if variant.backend in self._idle else _NO_BACKEND
            executor = self._idle.pop(backend, None) or self._make()
            if self.spare and _NO_BACKEND not in self._idle:
                spare = self._idle[_NO_BACKEND] = self._make()
                if isinstance(spare, ProcessExecutor):
                    spare.begin()
        self._loaded[loaded_as(variant)] = executor
        return executor

    def _any(self) -> Executor:
        if self._loaded:
            return next(reversed(self._loaded.values()))
        if not self._idle:
            self._idle[_NO_BACKEND] = self._make()
        return next(iter(self._idle.values()))
