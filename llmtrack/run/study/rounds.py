"""Interleave the variants of a study, back and forth (A B C, C B A), so that drift affects all alike.

Each visit makes part of a scenario's repeats; both visits of a lap make equally many, so that linear drift cancels out.
Laps continue until every scenario has enough repeats, and all scenarios take part while their time allows: extra
repeats of a single one would be measured under different conditions than those it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from llmtrack.host.formatting import plural
from llmtrack.measure.statistics import should_stop
from llmtrack.quality.attach import without_scores
from llmtrack.run.executors.executor import INTERRUPTED, Executor
from llmtrack.run.executors.pool import MOST_ON_GPU, Pool
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.merge import merge_measurements, were_disturbed
from llmtrack.run.study.plan import device_of
from llmtrack.run.study.remeasure import MOST_ROUNDS, calmed, still_disturbed
from llmtrack.run.study.scoring import run_scenarios, score_beside
from llmtrack.spec.events import Collected, Event, Log, Progress
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.serialization import from_json, to_json
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, ShardTask

VISITS = 2
"""Visits of each scenario per lap: forth and back."""

ONCE = "measured in a single round, so that drift of the machine may affect it alone"

_DURATION = "total_latency_s"
_OF_MEMORY = ("out_of_memory", "killed")
"""Failures that the other loaded models may have caused."""


def is_in_turn(scenario: Scenario) -> bool:
    """Return whether a scenario is interleaved with others."""
    if isinstance(scenario.task, PerplexityTask):
        # Several workers need the machine to themselves.
        return scenario.task.workers == 1 and not isinstance(scenario.task, ShardTask)
    return isinstance(scenario.task, GenerateTask)


def run_in_turn(
    executor: Executor,
    groups: Sequence[Sequence[Scenario]],
    on_event: Callable[[Event], None],
    journal: Journal,
) -> None:
    """Measure groups interleaved; scoring beside a timing follows after all timing, and training last.

    When interrupted, emit what was measured, with a warning.

    Args:
        executor: a `Pool` keeps models loaded between visits; others reload them.
        groups: scenarios of one variant each.
        on_event: receives every event, including one outcome per scenario.
        journal: records each visit, since none is tracked until all are made; recorded visits are not repeated.
    """
    turns = _Turns(executor, groups, on_event, journal)
    try:
        turns.time()
        turns.tell()
    except BaseException:
        turns.tell_interrupted()
        raise
    for group in groups:
        if rest := [each for each in group if not is_in_turn(each)]:
            run_scenarios(executor, rest, on_event)


class _Arm:
    """An interleaved scenario and its results so far."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.visits: list[Measurement] = []
        self.failure: Failure | None = None
        self.cut = ""
        """Why it is not visited any more."""

    @property
    def timed(self) -> bool:
        """Whether it is repeated by its policy; a text is scored once per visit."""
        return isinstance(self.scenario.task, GenerateTask)

    @property
    def durations(self) -> list[float]:
        """Seconds of each repeat so far, or of each pass over the text."""
        return [seconds for each in self.visits for seconds in self._seconds(each)]

    def next(self, back: bool, warm: bool, until_narrow: bool) -> Scenario | None:
        """Return the scenario of the next visit, or None if time or repeats are used up.

        Args:
            back: whether it is the second visit of a lap, with as many repeats as the first.
            warm: whether nothing else was measured since the last visit.
            until_narrow: repeat until the interval is narrow, because there will be no further lap.
        """
        policy, done = self.scenario.repeat, self.durations
        left = policy.max_seconds - math.fsum(done)
        room = policy.max_repeats - len(done)
        # The second visit mirrors the first.
        is_due = len(self.visits) % VISITS == (1 if back else 0)
        if self.failure is not None or self.cut or room < 1 or not is_due:
            return None
        if done and left < max(done) * (1 if back else VISITS):
            return None
        if not self.timed:
            return self.scenario if len(done) < VISITS else None
        repeat = _back(policy, self._seconds(self.visits[-1]), left) if back and done else None
        repeat = repeat or _there(policy, len(done), left, until_narrow)
        task = self.scenario.task
        if done:
            repeat = replace(repeat, warmup=0 if warm else min(policy.warmup, 1))
            # Known from the first visit.
            task = replace(task, compare_unpadded=False) if isinstance(task, GenerateTask) else task
        return replace(self.scenario, repeat=repeat, task=task, quality=None)

    def take(self, outcome: Measurement | Failure, number: int) -> None:
        """Record the outcome of a visit.

        Args:
            number: number of the round.
        """
        if isinstance(outcome, Measurement):
            if self.visits and _weights(self.visits[-1]) != _weights(outcome):
                self.visits.clear()  # resumed visits of a model that was replaced meanwhile
            rounds = (number,) * len(outcome.samples.get(_DURATION, ()))
            self.visits.append(replace(outcome, rounds=rounds))
        elif self.visits:
            self.cut = f"the round after failed ({outcome.kind}): {outcome.reason}"
        else:
            self.failure = replace(outcome, scenario=self.scenario)

    def is_open(self, laps: int) -> bool:
        """Return whether it needs a further lap and has time for it.

        Args:
            laps: completed laps.
        """
        if not self.timed or not self.visits or self.next(False, False, False) is None:
            return False
        # Each lap already satisfies the minimum time.
        enough = should_stop(self.durations, replace(self.scenario.repeat, min_seconds=0.0))
        return not enough or (were_disturbed(self.visits) and laps <= MOST_ROUNDS)

    def outcome(self, rounds: int, cut: str = "") -> Measurement:
        """Merge all visits into one measurement.

        Args:
            rounds: started rounds.
            cut: why there were no more.
        """
        whole, odd = self._whole(), len(self.visits) % VISITS
        if self.timed and whole.disturbed and len(self.visits) > VISITS:
            newest = merge_measurements(self.visits[-VISITS:], self.scenario.repeat)
            whole = calmed(whole, newest) or still_disturbed(whole)
        warnings, told = whole.warnings, tuple[str, ...]()
        if self.cut or (cut and odd):
            # Rounds were missed for a reason other than the time cap.
            warnings = tuple(line for line in warnings if not line.startswith("only "))
            of = rounds if self.cut else len(self.visits) + 1
            told = (f"measured in {len(self.visits)} of {plural(of, 'round')}: {self.cut or cut}",)
        elif self.timed and len(self.visits) < VISITS:
            told = (f"{ONCE}: raise max_seconds",)
        return replace(whole, warnings=(*warnings, *told))

    def _whole(self) -> Measurement:
        return replace(merge_measurements(self.visits, self.scenario.repeat), scenario=self.scenario)

    def _seconds(self, visit: Measurement) -> Sequence[float]:
        if self.timed:
            return visit.samples.get(_DURATION, ())
        rate = visit.metrics.get("score_tokens_per_sec")
        return (visit.metrics["tokens_scored"] / rate,) if rate else (0.0,)


def _weights(visit: Measurement) -> dict[str, str]:
    return {name: value for name, value in visit.tags.items() if name.endswith("_digest")}


def _there(policy: RepeatPolicy, done: int, left: float, until_narrow: bool) -> RepeatPolicy:
    """Return the policy of a lap's first visit: half of the repeats wanted, in a quarter of the time."""
    return replace(
        policy,
        min_repeats=max(-(-policy.min_repeats // VISITS), done // 4),
        min_seconds=policy.min_seconds / VISITS,
        max_seconds=left / VISITS,
        max_repeats=max(1, (policy.max_repeats - done) // VISITS),
        target_ci=policy.target_ci if until_narrow else math.inf,
    )


def _back(policy: RepeatPolicy, there: Sequence[float], left: float) -> RepeatPolicy:
    """Return the policy of a lap's second visit: as many repeats as in the first."""
    return replace(policy, min_repeats=len(there), max_repeats=len(there), min_seconds=0.0, max_seconds=left)


def _read(gave: list[Any]) -> list[Outcome]:
    """Decode the outcomes of a recorded visit."""
    return [from_json(each, Outcome) for each in gave]


class _Turns:
    """The laps of a study."""

    def __init__(
        self,
        executor: Executor,
        groups: Sequence[Sequence[Scenario]],
        on_event: Callable[[Event], None],
        journal: Journal,
    ) -> None:
        self._executor = executor
        self._on_event = on_event
        self._journal = journal
        found = ([_Arm(each) for each in group if is_in_turn(each)] for group in groups)
        self._groups = [arms for arms in found if arms]
        self._variants = [arms[0].scenario.variant for arms in self._groups]
        self._untold = {arm.scenario.name: arm for arms in self._groups for arm in arms}
        self._last: Variant | None = None
        self._round = 0
        self._timing = True

    def time(self) -> None:
        """Make laps until all scenarios have enough repeats; only one if models must be reloaded for each visit."""
        once = not self._make_room()
        models, kept = plural(len(self._groups), "model"), "loaded for each round" if once else "kept loaded"
        self._on_event(Log(f"  {models} ({kept}), measured in turn, there and back"))
        while not self._round or any(arm.is_open(self._laps) for arm in self._untold.values()):
            for back, order in ((False, self._groups), (True, self._groups[::-1])):
                self._round += 1
                for arms in order:
                    self._visit(arms, back, once)
            if once or not self._holds_all():
                break
        self._timing = False

    def tell(self) -> None:
        """Emit the outcomes; those with nothing to score come first."""
        done = [arm for arm in self._untold.values() if arm.visits]
        for arm in done:
            if arm.scenario.quality is None:
                self._tell(arm.outcome(self._round))
        for arm in done:
            if arm.scenario.quality is not None:
                self._tell(score_beside(self._executor, arm.outcome(self._round), self._tell))

    def tell_interrupted(self) -> None:
        """Emit what was measured of the scenarios without an outcome."""
        for arm in list(self._untold.values()):
            if arm.visits and self._timing:
                self._tell(arm.outcome(self._round, INTERRUPTED))
            elif arm.visits:
                self._tell(without_scores(arm.outcome(self._round), INTERRUPTED))

    @property
    def _laps(self) -> int:
        return self._round // VISITS

    def _visit(self, arms: Sequence[_Arm], back: bool, until_narrow: bool) -> None:
        variant = arms[0].scenario.variant
        warm = variant == self._last
        wanted = [each for arm in arms if (each := arm.next(back, warm, until_narrow)) is not None]
        if not wanted:
            return
        self._last = variant
        collected = Collected(self._hear)
        found = collected.outcomes
        try:
            key = [self._round, [each.scenario_id for each in wanted]]
            found = self._journal.act(key, partial(self._measured, wanted, collected), _read)
        finally:
            # Also when interrupted: keep what is measured.
            for outcome in found:
                self._take(outcome)

    def _measured(self, scenarios: Sequence[Scenario], collected: Collected) -> list[Any]:
        """Measure a visit; retry failures for lack of memory without other loaded models.

        Args:
            scenarios: of one variant.
            collected: receives the events.

        Returns:
            The outcomes, JSON-ready.
        """
        found = collected.outcomes
        self._executor.run(tuple(scenarios), collected)
        lost = [each for each in found if isinstance(each, Failure) and each.kind in _OF_MEMORY]
        if lost:
            self._last = None
        if lost and isinstance(self._executor, Pool) and self._executor.hold_only(scenarios[0].variant):
            names = {each.scenario.name for each in lost}
            found[:] = [each for each in found if each.scenario.name not in names]
            self._executor.run(tuple(each for each in scenarios if each.name in names), collected)
        return [to_json(each, Outcome) for each in found]

    def _hear(self, event: Event) -> None:
        """Forward what a visit does, with the number of its round."""
        if isinstance(event, Progress):
            share = min(0.95, (self._round - 1 + (event.done or 0.0)) / VISITS)
            event = replace(event, step=f"round {self._round}, {event.step}", done=share)
        self._on_event(event)

    def _take(self, outcome: Measurement | Failure) -> None:
        arm = self._untold[outcome.scenario.name]
        arm.take(outcome, self._round)
        if arm.failure is not None:
            self._tell(arm.failure)

    def _tell(self, event: Event) -> None:
        if isinstance(event, (Measurement, Failure)):
            self._untold.pop(event.scenario.name, None)
        self._on_event(event)

    def _make_room(self) -> bool:
        """Return whether all models are predicted to fit into memory at once, if the executor can keep them loaded."""
        pool = self._executor
        if not isinstance(pool, Pool):
            return False
        machine = pool.machine()
        if any(device_of(each.device, machine) != "cpu" for each in self._variants):
            pool.most = MOST_ON_GPU
        return pool.has_room(self._variants)

    def _holds_all(self) -> bool:
        pool = self._executor
        live = {arm.scenario.variant for arm in self._untold.values()}
        return isinstance(pool, Pool) and all(map(pool.holds, live))
