"""Tune as a tracked study: race the ways to run a model, track each with why it was dropped, and report what was tracked."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from llmtrack.decide.significance import Ratio
from llmtrack.decide.tuning import Tuning
from llmtrack.experiment import Experiment
from llmtrack.measure.statistics import summarize
from llmtrack.outcome import Failure, Measurement, Outcome
from llmtrack.plain import digest
from llmtrack.report.terminal import say
from llmtrack.run.hands import FRESH, SAMPLE, Asked, Hands, scenario_of
from llmtrack.run.how import command_line, python_lines
from llmtrack.run.journal import Journal
from llmtrack.run.merged import merged
from llmtrack.run.plan import model_folders
from llmtrack.run.pool import Pool
from llmtrack.run.progress import StudyProgress
from llmtrack.run.space import Space
from llmtrack.run.study import StudyResult, opened, report_study
from llmtrack.run.support import say_support
from llmtrack.scenario import Scalar
from llmtrack.stopping import stop_in_order
from llmtrack.tracking.aliases import set_alias
from llmtrack.tracking.environment import environment, environment_id
from llmtrack.tracking.tracker import Study, Tracker

CHAMPION = "champion"


def run_tune(
    experiment: Experiment,
    space: Space,
    asked: Asked,
    *,
    tracker: Tracker,
    pool: Pool,
    console: Console,
    resume: bool = False,
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
) -> StudyResult:
    """Find the best way to run a model, track every candidate with what became of it, and report the answer.

    When it is interrupted, what is measured is tracked, and the same command with `resume` goes on.

    Args:
        experiment: question, plots and reading.
        space: the candidates.
        asked: what is asked for.
        tracker: where it is tracked.
        pool: what measures.
        console: where to print.
        resume: go on with one that was killed.
        clock: returns seconds; it decides when the time is used up.
        began: when the time began to run; None: now.
    """
    began = clock() if began is None else began
    scenarios = [scenario_of(each, SAMPLE) for each in space.candidates]
    facts = environment(pool.machine(), model_folders(scenarios))
    say(console, f"{experiment.name}: {experiment.question}")
    say(console, f"  {len(scenarios)} candidates, {asked.seconds:.0f} s; the baseline is {scenarios[0].name}")
    say_support(console, pool.machine(), scenarios)
    for reason in dict.fromkeys(reason for _, reason in space.left_out):
        names = ", ".join(name for name, why in space.left_out if why == reason)
        say(console, f"  left out: {names}: {reason}")
    same = digest([[each.scenario_id for each in scenarios], environment_id(facts), repr(asked)])
    journal = Journal(tracker.spool.folder.parent / "tune" / f"{same}.jsonl", resume)
    start = partial(
        tracker.start_study, experiment.name, experiment.question, dict(experiment.settings), facts
    )
    with opened(tracker, pool, start) as study, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with StudyProgress(console, len(scenarios)) as progress:
            hands = Hands(space.candidates, asked, pool, progress, journal, folder, clock, began)
            tuning = Tuning(hands.task(), hands)
            try:
                tuning.run()
                hands.score_answer(tuning)
            finally:
                with stop_in_order():
                    tracked = _track(study, tracker, hands, tuning)
            spent = f"{tuning.spent:.0f} of {asked.seconds:.0f} s"
            progress.line(f"  {tuning.race.round} rounds, {spent}")
            for outcome in tracked.values():
                progress.ended(outcome.scenario.name, _line(outcome))
        failed = tuning.winner is None
        reported = report_study(experiment, study, tracker, console, failed, None)
    journal.done()
    lost = sum(isinstance(outcome, Failure) for outcome in tracked.values())
    measured = len(tracked) - lost
    return StudyResult(study=study, measured=measured, failed=lost if failed else 0, **vars(reported))


def _track(study: Study, tracker: Tracker, hands: Hands, tuning: Tuning) -> dict[str, Outcome]:
    """Write the run of each candidate with what became of it, and return them; the winner's run gets the alias."""
    tracked: dict[str, Outcome] = {}
    for name in hands.of:
        tracked[name] = outcome = _outcome_of(name, hands, tuning)
        run_id = tracker.log(study, outcome)
        if name == tuning.winner and run_id is not None and not tracker.offline:
            set_alias(CHAMPION, run_id, tracker.tracking_uri)
    return tracked


def _outcome_of(name: str, hands: Hands, tuning: Tuning) -> Outcome:
    """Return a candidate's rounds as one outcome; of the winner and the baseline the fresh measurements alone."""
    candidate = hands.of[name]
    is_base = name == tuning.task.baseline
    facts: dict[str, Scalar] = {"tuned_for": tuning.task.objective, **_place(name, tuning)}
    done = (hands.fresh.get(name) if tuning.fresh else None) or hands.rounds[name]
    if not done:
        why = str(facts["race_reason"])
        failure = hands.failures.get(name) or Failure(
            scenario_of(candidate, SAMPLE), "timeout", why, started_at=time.time(), ended_at=time.time()
        )
        return replace(
            failure, scenario=replace(failure.scenario, baseline=is_base), facts={**failure.facts, **facts}
        )
    whole = merged(
        done, replace(FRESH if tuning.fresh else SAMPLE, min_repeats=min(5, len(done)), max_repeats=200)
    )
    whole = _with_fresh(whole, tuning.task.objective, tuning.fresh.get(name, ()))
    quality = tuning.quality.get(tuning.task.model_of[name])
    metrics = dict(whole.metrics)
    if is_base or quality is not None:
        metrics["reference_perplexity_ratio"] = 1.0 if quality is None else quality.value
    answer = hands.answers.get(name)
    if answer is not None:
        scored = (
            "loss",
            "loss_stderr",
            "perplexity",
            "bits_per_byte",
            "word_perplexity",
            "tokens_scored",
            "bytes_scored",
        )
        metrics |= {key: value for key, value in answer.metrics.items() if key in scored}
        known = {key: value for key, value in answer.facts.items() if key not in whole.facts}
        facts = {**known, **vars_of(answer.scenario.task), **facts}
    texts = dict(whole.texts)
    texts["race.json"] = (
        json.dumps({"race": tuning.race.samples[name], "fresh": tuning.fresh.get(name, [])}) + "\n"
    )
    if name == tuning.winner:
        texts["run_it.py"] = python_lines(candidate.variant, candidate.task)
        texts["run_it.sh"] = command_line(candidate.variant, candidate.task) + "\n"
    return replace(
        whole,
        scenario=replace(whole.scenario, baseline=is_base),
        metrics=metrics,
        facts={**whole.facts, **facts},
        texts=texts,
    )


def _with_fresh(whole: Measurement, objective: str, values: Sequence[float]) -> Measurement:
    """Return a measurement with what was measured afresh as samples, where a call has one figure only (its energy)."""
    if not values or objective in whole.samples:
        return whole
    summary = summarize(values)
    return replace(
        whole,
        samples={**whole.samples, objective: tuple(values)},
        summaries={**whole.summaries, objective: summary},
        metrics={**whole.metrics, objective: summary.median},
    )


def vars_of(task: Any) -> dict[str, Scalar]:
    """Return the convention of scoring, as params tell it."""
    names = ("protocol", "max_length", "bos_rule", "max_tokens")
    return {name: getattr(task, name) for name in names}


def _place(name: str, tuning: Tuning) -> dict[str, Scalar]:
    """Return what became of a candidate, and why."""
    out = tuning.race.dropped.get(name)
    claim = tuning.claim
    if claim is not None and name in tuning.fresh and name != tuning.winner:
        if claim.verdict == "better":
            first = f"{out.why}; " if out is not None and not out.by else ""
            why = f"{first}measured afresh: {tuning.winner} is {claim.words}"
            return {"race_place": "dropped", "race_reason": why}
        return {
            "race_place": "equal",
            "race_reason": f"measured afresh against {tuning.winner}: {claim.words}",
        }
    if name == tuning.winner:
        quality = tuning.quality.get(tuning.task.model_of[name])
        return {"race_place": "winner", "race_reason": _best(name, tuning, quality)}
    if out is not None:
        return {"race_place": "dropped", "race_reason": out.why}
    if tuning.winner is None:
        return {"race_place": "open", "race_reason": "the race did not come to its end"}
    better = f"it was not told from {tuning.winner}"
    leader = tuning.race.leader()
    why = "" if leader in (name, tuning.winner) else f", nor from {leader}"
    simpler = (
        " which is the simpler one"
        if tuning.task.names.index(name) > tuning.task.names.index(tuning.winner)
        else ""
    )
    return {"race_place": "equal", "race_reason": f"{better}{why}{',' if simpler else ''}{simpler}"}


def _best(name: str, tuning: Tuning, quality: Ratio | None) -> str:
    words = (
        f"best of {len(tuning.task.names)}"
        if len(tuning.equal) == 1
        else "the simplest of those not told from the best"
    )
    if quality is not None and quality.low != quality.high and math.isfinite(quality.high):
        words += f"; perplexity {quality.value - 1:+.2%} ({quality.low - 1:+.2%} to {quality.high - 1:+.2%})"
    return words


def _line(outcome: Outcome) -> str:
    facts = outcome.facts
    return f"  {outcome.scenario.name}: {facts.get('race_place')}: {facts.get('race_reason')}"
