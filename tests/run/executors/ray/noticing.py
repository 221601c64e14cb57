"""Patience that nodes can import without the tests' other imports, which take seconds."""

from __future__ import annotations

from collections.abc import Iterable

from llmtrack.run.executors.timeouts import Patience
from llmtrack.spec.events import Progress
from llmtrack.spec.scenario import Scenario


class Noticing(Patience):
    """Times out soon for a scenario that is known to hang, so that no test depends on the machine's speed."""

    def seconds(self, at: Progress, scenarios: Iterable[Scenario]) -> float:
        hangs = at.scenario == "hangs" and at.step == "repeat 1"
        return 1.0 if hangs else super().seconds(at, scenarios)
