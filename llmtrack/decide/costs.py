"""Predict the time to try a candidate (start, conversion, loading, compiling, calls), and learn from actual times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llmtrack.decide.promise import Way

# Remaining share of a worker's start time if prestarted, and of compile time if cached.
_READY_SHARE, _RECOMPILED_SHARE = 0.3, 0.5


@dataclass
class Costs:
    """Predicts the time to try a candidate, and learns from observed times.

    Args:
        start: seconds to start a worker process.
        ready: whether the next worker is started in advance.
    """

    start: float = 5.0
    ready: bool = False
    made: set[str] = field(default_factory=set)
    broken: dict[str, float] = field(default_factory=dict)
    slower: float = 1.0
    """Observed over predicted seconds of first tries."""
    _timeouts: dict[str, int] = field(default_factory=dict)

    def first(self, way: Way, call_s: float) -> float:
        """Predict the seconds of a first sample: start, conversion, loading, compiling, a warm-up and a few calls.

        Args:
            call_s: seconds per call.
        """
        start = _READY_SHARE * self.start if self.ready else self.start
        return self.slower * (start + self.building(way) + way.loads) + way.compiles + 3 * call_s + 0.5

    def reload(self, way: Way) -> float:
        """Predict the seconds to reload a measured candidate."""
        return self.slower * way.loads + _RECOMPILED_SHARE * way.compiles + 1.0

    def building(self, way: Way) -> float:
        """Predict the seconds of the conversions that are still missing."""
        return math.fsum(
            max(seconds, 2 * self.broken.get(what, 0.0))
            for what, seconds in way.builds.items()
            if what not in self.made
        )

    def succeeded(self, way: Way, took: float, call_s: float) -> None:
        """Learn from a successful first sample."""
        predicted = self.first(way, call_s) / self.slower
        if predicted > 1.0 and not way.compiles:
            self.slower = min(max(self.slower * (took / (predicted * self.slower)) ** 0.5, 0.8), 5.0)
        self.made |= set(way.builds)

    def timed_out(self, way: Way, at: str, after: float) -> None:
        """Learn from a first sample that timed out; two timeouts in one phase raise all predictions of it."""
        self._timeouts[at] = self._timeouts.get(at, 0) + 1
        for what in way.builds:
            if what not in self.made:
                self.broken[what] = max(self.broken.get(what, 0.0), after)
                break
        if self._timeouts[at] >= 2:
            self.slower = min(2 * self.slower, 5.0)
            self._timeouts[at] = 0
