"""Measure in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from llmtrack.engine import Engine
from llmtrack.host.libraries import gc_paused
from llmtrack.run.executors.executor import PartialResults
from llmtrack.run.executors.timeouts import StepTimeout
from llmtrack.spec.events import Emit
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask


class InlineExecutor:
    """Measures in this process: for tests, debuggers and notebooks.

    Args:
        load: load a variant as an engine; by default through the installed backends. The files that a scenario names do
            not identify the model of a custom one.
        time_limit: maximum seconds per call, checked between calls; 0 for none.
    """

    def __init__(
        self,
        load: Callable[[Variant], Engine] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        time_limit: float = 0.0,
    ) -> None:
        with gc_paused():
            from llmtrack.engines.registry import load_variant
            from llmtrack.worker.measuring import EngineCache

        self._engines = EngineCache(load or load_variant)
        self._by_files = load is None
        self._clock = clock
        self._time_limit = time_limit

    def machine(self) -> Mapping[str, str]:
        """See `Executor.machine`."""
        from llmtrack.worker.machine import describe

        return describe()

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """See `Executor.check`."""
        from llmtrack.worker import identity

        identity.check(scenarios if self._by_files else ())

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """See `Executor.identify`."""
        from llmtrack.worker.identity import identify

        return identify(scenario) if self._by_files else {}

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """See `Executor.run`."""
        from llmtrack.worker.measuring import measure_group

        with PartialResults(emit) as results:
            on_event: Emit = results
            if self._time_limit > 0:
                # Training comes last and loads its own model.
                first = next((s for s in scenarios if not isinstance(s.task, TrainTask)), scenarios[0])
                on_event = StepTimeout(results, self._time_limit, self._clock, first.name)
            measure_group(scenarios, self._engines, on_event, self._clock)

    def close(self) -> None:
        """See `Executor.close`."""
        self._engines.close()
