"""Measure groups interleaved, or concurrently if the executor can, and handle all events in one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llmtrack.run.executors.executor import Executor, ManyAtOnce
from llmtrack.run.executors.pool import Pool
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.remeasure import run_undisturbed
from llmtrack.run.study.rounds import is_in_turn, run_in_turn
from llmtrack.run.study.threads import Calls, run_in_threads
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario


def run_groups(
    executor: Executor,
    groups: Sequence[Sequence[Scenario]],
    on_event: Callable[[Event], None],
    on_disturbed: Callable[[Measurement], None],
    open_journal: Callable[[], Journal],
) -> None:
    """Measure groups: interleaved if several are compared (see `rounds`), else one by one (see `run_undisturbed`).

    The callbacks are called in this thread only.

    Args:
        groups: scenarios of one variant each.
        on_disturbed: receives the first measurement of a remeasured baseline.
    """
    if isinstance(executor, Pool):
        executor.hold_only(*(group[0].variant for group in groups))
    compared = sum(any(map(is_in_turn, group)) for group in groups)
    if compared > 1 and not isinstance(executor, ManyAtOnce):
        journal = open_journal()
        run_in_turn(executor, groups, on_event, journal)
        journal.done()
        return
    if not isinstance(executor, ManyAtOnce) or len(groups) == 1:
        for group in groups:
            run_undisturbed(executor, group, on_event, on_disturbed)
        return
    calls = Calls()

    def measure(group: Sequence[Scenario]) -> None:
        run_undisturbed(
            executor,
            group,
            lambda event: calls.put(partial(on_event, event)),
            lambda first: calls.put(partial(on_disturbed, first)),
        )

    jobs = [partial(measure, group) for group in groups]
    run_in_threads(jobs, executor.at_once, calls, executor.stop, flush=True)
