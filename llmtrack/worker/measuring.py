"""Measure the scenarios of one variant on one loaded engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from llmtrack.engine import Engine
from llmtrack.engines.options import ThreadOption, loaded_as
from llmtrack.errors import ExtensionError, LlmtrackError, ScenarioError
from llmtrack.measure.timing import Clock
from llmtrack.spec.events import LOADING, Emit, Event, Log, Progress, SoFar, Warn
from llmtrack.spec.options import chosen
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask, ShardTask, TrainTask
from llmtrack.worker.generate import measure_generation
from llmtrack.worker.outcomes import failure_of
from llmtrack.worker.perplexity import Ready, measure_perplexity, measure_quality, measure_shard, with_quality
from llmtrack.worker.train import measure_training


@runtime_checkable
class SetsThreads(Protocol):
    """An engine that sets its threads for each call."""

    def set_threads(self, options: ThreadOption) -> None:
        """Compute the following calls with another number of threads."""
        ...


class EngineCache:
    """Keeps the engine of the last variant, which its scenarios share."""

    def __init__(self, load: Callable[[Variant], Engine]) -> None:
        self.load = load
        """Loads another engine, which the caller closes."""
        self._variant: Variant | None = None
        self._engine: Engine | None = None
        self._reference: tuple[Variant, Engine] | None = None
        self.ready: Ready = {}
        """Texts prepared by the engine."""

    def get(self, variant: Variant, on_load: Callable[[], None] = lambda: None) -> tuple[Engine, bool]:
        """Return the engine of a variant, and whether it was just loaded, which is announced before."""
        if self._engine is not None and (variant == self._variant or self._adapt(variant)):
            self._variant = variant
            return self._engine, False
        self.close()
        on_load()
        self._engine = self.load(variant)
        self._variant = variant
        return self._engine, True

    def _adapt(self, variant: Variant) -> bool:
        """Change a setting of the loaded engine's calls if a variant differs only in that; return whether it does."""
        engine, loaded = self._engine, self._variant
        if loaded is None or loaded_as(variant) != loaded_as(loaded) or not isinstance(engine, SetsThreads):
            return False
        engine.set_threads(chosen(ThreadOption, variant.options))
        return True

    def load_reference(self, variant: Variant) -> Engine:
        """Load another engine, kept as long as the first one or until a different one is requested."""
        if self._reference is None or self._reference[0] != variant:
            self._free_reference()
            self._reference = variant, self.load(variant)
        return self._reference[1]

    def _free_reference(self) -> None:
        if self._reference is not None:
            self._reference[1].close()
        self._reference = None

    def close(self) -> None:
        """Free the engine."""
        self._free_reference()
        if self._engine is not None:
            self._engine.close()
        self._variant = self._engine = None
        self.ready.clear()


def measure_group(
    scenarios: Sequence[Scenario], engines: EngineCache, emit: Emit, clock: Clock = time.perf_counter
) -> None:
    """Measure scenarios of one variant; emit a Measurement or a Failure for each when it ends.

    Timed scenarios come first, interleaved; then scoring; then training, which loads a model of its own to change it.
    """
    loaded = [scenario for scenario in scenarios if not isinstance(scenario.task, TrainTask)]
    if loaded:
        _measure_loaded(loaded, engines, emit, clock)
    for scenario in scenarios:
        if isinstance(scenario.task, TrainTask):
            engines.close()
            measure_training(scenario, scenario.task, emit, clock)


def _measure_loaded(scenarios: Sequence[Scenario], engines: EngineCache, emit: Emit, clock: Clock) -> None:
    started = time.time()
    try:
        with preparation_logged(emit):
            # It may take an hour, in silence: whoever waits must know that it is no step of a measurement.
            engine, fresh = engines.get(scenarios[0].variant, lambda: emit(Progress(scenarios[0].name, LOADING)))
    except Exception as error:
        # A scenario's own error (out of memory, unsupported ...) is more specific than a loading failure.
        is_unspecific = isinstance(error, LlmtrackError) and not isinstance(error, ScenarioError)
        kind = "extension" if isinstance(error, ExtensionError) else "load" if is_unspecific else None
        for scenario in scenarios:
            emit(failure_of(scenario, error, started, kind=kind))
        return
    info = engine.info
    if fresh:
        emit(Log(f"Loaded: {info.model_id} | device={info.device.split(':')[0]} | dtype={info.dtype_label}"))
        for warning in info.warnings:
            emit(Warn(warning))
    timed: list[Measurement] = []

    def hold(event: Event) -> None:
        """Defer scoring until all timing is done."""
        if isinstance(event, Measurement) and event.scenario.quality is not None:
            timed.append(event)
            emit(SoFar(event))
        else:
            emit(event)

    measure_generation(scenarios, engine, hold, clock)
    for measurement in timed:
        check = measurement.scenario.quality
        assert check is not None  # otherwise it would not have been deferred
        emit(with_quality(measurement, check, engine, engines.load, emit, clock))
    for scenario in scenarios:
        if isinstance(scenario.task, ShardTask):
            measure_shard(scenario, scenario.task, engine, engines.ready, engines.load_reference, emit, clock)
        elif isinstance(scenario.task, PerplexityTask) and scenario.quality is not None:
            measure_quality(scenario, scenario.quality, engine, engines.load, emit, clock)
        elif isinstance(scenario.task, PerplexityTask):
            measure_perplexity(scenario, scenario.task, engine, emit, clock)


class _PreparationLog(logging.Handler):
    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.INFO)
        self._emit_event = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit_event(Log(f"  {record.getMessage()}"))


@contextmanager
def preparation_logged(emit: Emit) -> Iterator[None]:
    """Emit the log of slow preparations (download, export, quantization) as lines within the context."""
    logger, handler = logging.getLogger("llmtrack"), _PreparationLog(emit)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
