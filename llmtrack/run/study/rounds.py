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
from llmtrack.run.study.remeasure import MOST_ROUNDS, settled, still_disturbed
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
        on_event: receives every event, with one outcome per scenario.
        journal: records each visit, since none is tracked until all are made; recorded visits are not repeated.
    """
    laps = _Laps(executor, groups, on_event, journal)
    try:
        laps.run()
        laps.report()
    except BaseException:
        laps.report_interrupted()
        raise
    for group in groups:
        if rest := [scenario for scenario in group if not is_in_turn(scenario)]:
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
        return [seconds for visit in self.visits for seconds in self._seconds(visit)]

    def next(self, is_return: bool, is_warm: bool, until_narrow: bool) -> Scenario | None:
        """Return the scenario of the next visit, or None if time or repeats are used up.

        Args:
            is_return: whether it is the second visit of a lap, with as many repeats as the first.
            is_warm: whether nothing else was measured since the last visit.
            until_narrow: repeat until the interval is narrow, because no further lap follows.
        """
        policy, durations = self.scenario.repeat, self.durations
        seconds_left = policy.max_seconds - math.fsum(durations)
        repeats_left = policy.max_repeats - len(durations)
        # The second visit mirrors the first.
        is_due = len(self.visits) % VISITS == (1 if is_return else 0)
        if self.failure is not None or self.cut or repeats_left < 1 or not is_due:
            return None
        if durations and seconds_left < max(durations) * (1 if is_return else VISITS):
            return None
        if not self.timed:
            return self.scenario if len(durations) < VISITS else None
        if is_return and durations:
            repeat = _return_policy(policy, self._seconds(self.visits[-1]), seconds_left)
        else:
            repeat = _outward_policy(policy, len(durations), seconds_left, until_narrow)
        task = self.scenario.task
        if durations:
            repeat = replace(repeat, warmup=0 if is_warm else min(policy.warmup, 1))
            # Known from the first visit.
            task = replace(task, compare_unpadded=False) if isinstance(task, GenerateTask) else task
        return replace(self.scenario, repeat=repeat, task=task, quality=None)

    def take(self, outcome: Measurement | Failure, number: int) -> None:
        """Record the outcome of a visit in the numbered round."""
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
        """Return whether it needs a further lap after the completed ones, and has time for it."""
        if not self.timed or not self.visits or self.next(False, False, False) is None:
            return False
        # Each lap already satisfies the minimum time.
        is_enough = should_stop(self.durations, replace(self.scenario.repeat, min_seconds=0.0))
        return not is_enough or (were_disturbed(self.visits) and laps <= MOST_ROUNDS)

    def outcome(self, rounds: int, cut: str = "") -> Measurement:
        """Merge all visits into one measurement.

        Args:
            cut: why there were no more.
        """
        merged = replace(merge_measurements(self.visits, self.scenario.repeat), scenario=self.scenario)
        unpaired = len(self.visits) % VISITS
        if self.timed and merged.disturbed and len(self.visits) > VISITS:
            newest = merge_measurements(self.visits[-VISITS:], self.scenario.repeat)
            merged = settled(merged, newest) or still_disturbed(merged)
        warnings, notes = merged.warnings, tuple[str, ...]()
        if self.cut or (cut and unpaired):
            # Rounds were missed for a reason other than the time cap.
            warnings = tuple(line for line in warnings if not line.startswith("only "))
            total = rounds if self.cut else len(self.visits) + 1
            notes = (f"measured in {len(self.visits)} of {plural(total, 'round')}: {self.cut or cut}",)
        elif self.timed and len(self.visits) < VISITS:
            notes = (f"{ONCE}: raise max_seconds",)
        return replace(merged, warnings=(*warnings, *notes))

    def _seconds(self, visit: Measurement) -> Sequence[float]:
        if self.timed:
            return visit.samples.get(_DURATION, ())
        rate = visit.metrics.get("score_tokens_per_sec")
        return (visit.metrics["tokens_scored"] / rate,) if rate else (0.0,)


def _weights(visit: Measurement) -> dict[str, str]:
    return {name: value for name, value in visit.tags.items() if name.endswith("_digest")}


def _outward_policy(policy: RepeatPolicy, done: int, seconds_left: float, until_narrow: bool) -> RepeatPolicy:
    """Return the policy of a lap's first visit: half of the required repeats, in a quarter of the time."""
    return replace(
        policy,
        min_repeats=max(-(-policy.min_repeats // VISITS), done // 4),
        min_seconds=policy.min_seconds / VISITS,
        max_seconds=seconds_left / VISITS,
        max_repeats=max(1, (policy.max_repeats - done) // VISITS),
        target_ci=policy.target_ci if until_narrow else math.inf,
    )


def _return_policy(policy: RepeatPolicy, outward: Sequence[float], seconds_left: float) -> RepeatPolicy:
    """Return the policy of a lap's second visit: as many repeats as in the first."""
    return replace(
        policy, min_repeats=len(outward), max_repeats=len(outward), min_seconds=0.0, max_seconds=seconds_left
    )


def _decode(visit: list[Any]) -> list[Outcome]:
    return [from_json(outcome, Outcome) for outcome in visit]


class _Laps:
    def __init__(
        self,
        executor: Executor,
        groups: Sequence[Sequence[Scenario]],
        on_event: Callable[[Event], None],
        journal: Journal,
    ) -> None:
        self._executor, self._on_event, self._journal = executor, on_event, journal
        groups_of_arms = ([_Arm(scenario) for scenario in group if is_in_turn(scenario)] for group in groups)
        self._groups = [arms for arms in groups_of_arms if arms]
        self._variants = [arms[0].scenario.variant for arms in self._groups]
        self._pending = {arm.scenario.name: arm for arms in self._groups for arm in arms}
        self._last: Variant | None = None
        self._round = 0
        self._timing = True

    def run(self) -> None:
        """Make laps until all scenarios have enough repeats; only one if models must be reloaded for each visit."""
        once = not self._fits_at_once()
        models, loading = plural(len(self._groups), "model"), "loaded for each round" if once else "kept loaded"
        self._on_event(Log(f"  {models} ({loading}), measured in turn, there and back"))
        while not self._round or any(arm.is_open(self._round // VISITS) for arm in self._pending.values()):
            for is_return, order in ((False, self._groups), (True, self._groups[::-1])):
                self._round += 1
                for arms in order:
                    self._visit(arms, is_return, once)
            if once or not self._holds_all():
                break
        self._timing = False

    def report(self) -> None:
        """Emit the outcomes; those with nothing to score come first."""
        measured = [arm for arm in self._pending.values() if arm.visits]
        for arm in measured:
            if arm.scenario.quality is None:
                self._report(arm.outcome(self._round))
        for arm in measured:
            if arm.scenario.quality is not None:
                self._report(score_beside(self._executor, arm.outcome(self._round), self._report))

    def report_interrupted(self) -> None:
        """Emit what was measured of the scenarios without an outcome."""
        for arm in list(self._pending.values()):
            if arm.visits and self._timing:
                self._report(arm.outcome(self._round, INTERRUPTED))
            elif arm.visits:
                self._report(without_scores(arm.outcome(self._round), INTERRUPTED))

    def _visit(self, arms: Sequence[_Arm], is_return: bool, until_narrow: bool) -> None:
        variant = arms[0].scenario.variant
        is_warm = variant == self._last
        scenarios = [scenario for arm in arms if (scenario := arm.next(is_return, is_warm, until_narrow)) is not None]
        if not scenarios:
            return
        self._last = variant
        collected = Collected(self._forward)
        outcomes = collected.outcomes
        try:
            key = [self._round, [scenario.scenario_id for scenario in scenarios]]
            outcomes = self._journal.act(key, partial(self._measure, scenarios, collected), _decode)
        finally:
            # Also when interrupted: keep what is measured.
            for outcome in outcomes:
                arm = self._pending[outcome.scenario.name]
                arm.take(outcome, self._round)
                if arm.failure is not None:
                    self._report(arm.failure)

    def _measure(self, scenarios: Sequence[Scenario], collected: Collected) -> list[Any]:
        """Measure scenarios of one variant; return the outcomes, JSON-ready.

        Those that fail for lack of memory are retried without the other loaded models.
        """
        outcomes = collected.outcomes
        self._executor.run(tuple(scenarios), collected)
        lost = [outcome for outcome in outcomes if isinstance(outcome, Failure) and outcome.kind in _OF_MEMORY]
        if lost:
            self._last = None
        if lost and isinstance(self._executor, Pool) and self._executor.hold_only(scenarios[0].variant):
            names = {failure.scenario.name for failure in lost}
            outcomes[:] = [outcome for outcome in outcomes if outcome.scenario.name not in names]
            self._executor.run(tuple(scenario for scenario in scenarios if scenario.name in names), collected)
        return [to_json(outcome, Outcome) for outcome in outcomes]

    def _forward(self, event: Event) -> None:
        """Forward what a visit does, with the number of its round."""
        if isinstance(event, Progress):
            share = min(0.95, (self._round - 1 + (event.done or 0.0)) / VISITS)
            event = replace(event, step=f"round {self._round}, {event.step}", done=share)
        self._on_event(event)

    def _report(self, event: Event) -> None:
        if isinstance(event, (Measurement, Failure)):
            self._pending.pop(event.scenario.name, None)
        self._on_event(event)

    def _fits_at_once(self) -> bool:
        """Return whether all models are predicted to fit into memory at once, if the executor can keep them loaded."""
        pool = self._executor
        if not isinstance(pool, Pool):
            return False
        machine = pool.machine()
        if any(device_of(variant.device, machine) != "cpu" for variant in self._variants):
            pool.most = MOST_ON_GPU
        return pool.has_room(self._variants)

    def _holds_all(self) -> bool:
        pool = self._executor
        live = {arm.scenario.variant for arm in self._pending.values()}
        return isinstance(pool, Pool) and all(map(pool.holds, live))
