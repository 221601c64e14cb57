"""What measures scenarios, and the simplest that does: in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from llmtrack.engine import Engine
from llmtrack.run.executors.partial_results import PartialResults
from llmtrack.run.executors.step_timeout import StepTimeout
from llmtrack.spec.events import Emit
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask

INTERRUPTED = "it was interrupted"
BESIDE = "what is measured beside it"


class Executor(Protocol):
    """Measures groups of scenarios that share a variant."""

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure (see `worker.machine.describe`)."""
        ...

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Refuse what no run can mend, before a study begins (see `worker.identity.require`).

        Raises:
            LlmtrackError: a backend, an option, a corpus or a model cannot be used.
        """
        ...

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model (see `worker.identity.identify`)."""
        ...

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant; emit a Measurement or a Failure for each as it ends."""
        ...

    def close(self) -> None:
        """Free what is loaded."""
        ...


METHODS = ("machine", "check", "identify", "run", "close")
"""What every executor has."""


@runtime_checkable
class ManyAtOnce(Executor, Protocol):
    """Measures several groups at once, each in a thread that calls `run`."""

    at_once: int
    """So many groups it takes at a time."""

    where: str
    """The hardware that it measures on, for a person."""

    def stop(self) -> None:
        """Have all that is measured end soon; what is there already, and can be taken up again later, is kept."""
        ...


class InlineExecutor:
    """Measures in this process: for tests, debuggers and notebooks.

    Args:
        load: turns a variant into an engine; by default through the installed backends. One of its own knows which
            model it loads, so the files that a scenario names tell nothing of it.
        clock: times it.
        time_limit: seconds that a call may take; it is looked at between calls. 0: as long as it takes.
    """

    def __init__(
        self,
        load: Callable[[Variant], Engine] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        time_limit: float = 0.0,
    ) -> None:
        from llmtrack.engines.registry import load_variant
        from llmtrack.worker.measuring import EngineCache

        self._engines = EngineCache(load or load_variant)
        self._by_files = load is None
        self._clock = clock
        self._time_limit = time_limit

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure."""
        from llmtrack.worker.machine import describe

        return describe()

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Refuse what no run can mend, before a study begins."""
        from llmtrack.worker.identity import require

        require(scenarios if self._by_files else ())

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model."""
        from llmtrack.worker.identity import identify

        return identify(scenario) if self._by_files else {}

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant, one after the other."""
        from llmtrack.worker.measuring import measure_group

        kept = PartialResults(emit)
        tell: Emit = kept
        if self._time_limit > 0:
            # What trains comes last, and loads its own model.
            first = next((each for each in scenarios if not isinstance(each.task, TrainTask)), scenarios[0])
            tell = StepTimeout(kept, self._time_limit, self._clock, first.name)
        try:
            measure_group(scenarios, self._engines, tell, self._clock)
        except BaseException:
            kept.emit_all_without(INTERRUPTED)
            raise

    def close(self) -> None:
        """Free the engine."""
        self._engines.close()
