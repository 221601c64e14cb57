"""Tune as a tracked study: race the candidates, track each with why it was dropped, and report the tracked runs."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from llmtrack.decide.differences import change_text
from llmtrack.decide.evidence import budget_text
from llmtrack.decide.significance import Ratio
from llmtrack.decide.tuning import CANNOT_WIN, Tuning
from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment
from llmtrack.host.formatting import plural
from llmtrack.host.signals import defer_signals
from llmtrack.measure.statistics import summarize
from llmtrack.report.sentences.reading import outcome_note
from llmtrack.report.terminal import print_line
from llmtrack.run.executors.pool import Pool
from llmtrack.run.reproduce import as_loaded, generate_command, generate_program, measured_comment
from llmtrack.run.study.announce import print_support
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.merge import merge_measurements
from llmtrack.run.study.plan import model_folders
from llmtrack.run.study.progress import SearchProgress
from llmtrack.run.study.study import StudyResult, opened, report_study
from llmtrack.run.tune.priors import earlier_ratios
from llmtrack.run.tune.search_space import Space
from llmtrack.run.tune.trials import FRESH, SAMPLE, Trials, TuneGoal, scenario_of
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scalar
from llmtrack.spec.serialization import digest
from llmtrack.tracking.environment import environment, environment_id
from llmtrack.tracking.read.checkpoints import fetch_checkpoints
from llmtrack.tracking.write.running import WORK_TAG
from llmtrack.tracking.write.tracker import Study, Tracker

CHAMPION = "champion"
MOST_NAMED = 3
"""Number of untried candidates to name, the most promising first."""
NOT_PROVEN = 4
"""Exit code of a search that ends with the best so far instead of a proven answer."""
_LEAST_S = 5.0
"""Minimum seconds of the budget that must be left once the worker has started."""


@dataclass(frozen=True, kw_only=True)
class TuneResult(StudyResult):
    """Result of a search.

    Attributes:
        ending: `proven`, `unproven` or `none`.
    """

    ending: str = "none"

    @property
    def exit_code(self) -> int:
        """0 for a proven answer, 4 for the best so far, 1 without an answer or if the report failed."""
        if self.problems or self.ending == "none":
            return 1
        return 0 if self.ending == "proven" else NOT_PROVEN


def run_tune(
    experiment: Experiment,
    space: Space,
    goal: TuneGoal,
    *,
    tracker: Tracker,
    pool: Pool,
    console: Console,
    resume: bool = False,
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
) -> TuneResult:
    """Search for the best way to run a model, track every candidate, and report the answer.

    On interruption, what is measured is tracked, and the same command with `resume` continues.

    Args:
        clock: monotonic clock in seconds that decides when the time is up.
        began: start of the time budget; None for now.

    Raises:
        UsageError: the budget is too small for the baseline.
    """
    began = clock() if began is None else began
    if goal.seconds - (clock() - began) < _LEAST_S:
        raise UsageError(
            f"budget {budget_text(goal.seconds)} is too small: starting a worker took {goal.start:.0f} s of it, and the baseline "
            f"must be loaded and called, too; use budget={budget_text(2 * goal.start + 60)} or more"
        )
    scenarios = [scenario_of(candidate, SAMPLE) for candidate in space.candidates]
    fetch_checkpoints(scenarios[:1], tracker.tracking_uri)
    pool.check(scenarios[:1])
    facts = environment(pool.machine(), model_folders(scenarios))
    print_line(console, f"{experiment.name}: {experiment.question}")
    print_line(console, f"  {len(scenarios)} candidates, {goal.seconds:.0f} s; the baseline is {scenarios[0].name}")
    print_support(console, pool.machine(), scenarios)
    for reason in dict.fromkeys(reason for _, reason in space.left_out):
        names = ", ".join(name for name, why in space.left_out if why == reason)
        print_line(console, f"  left out: {names}: {reason}")
    # Without the start time of a worker, which varies; by the name of the class that earlier versions hashed.
    request = repr(replace(goal, start=0.0)).replace("TuneGoal", "Asked", 1)
    work = digest([[scenario.scenario_id for scenario in scenarios], environment_id(facts), request])
    if not tracker.offline:
        ratios = earlier_ratios(
            space.candidates,
            scenarios[0].name,
            goal.objective,
            environment_id(facts),
            goal.cpus,
            tracker.tracking_uri,
        )
        goal = replace(goal, earlier=ratios)
        if ratios:
            print_line(console, f"  known from earlier runs here: {plural(len(ratios), 'candidate')}")
    start = partial(
        tracker.start_study,
        experiment.name,
        experiment.question,
        dict(experiment.settings),
        facts,
        scenarios=[scenario.name for scenario in scenarios],
        tags={WORK_TAG: work},
    )
    with opened(tracker, pool, console, work, resume, start) as study, ExitStack() as stack:
        journal = Journal(tracker.spool.folder.parent / "tune" / f"{work}.jsonl", resume)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with SearchProgress(console, goal.seconds, began, clock) as progress:
            trials = Trials(space.candidates, goal, pool, progress, journal, folder, clock, clock())
            tuning = Tuning(trials.search_goal(), trials)
            tuning.spent = trials.before_s = clock() - began
            try:
                tuning.run()
                trials.score_answer(tuning)
            finally:
                with defer_signals():
                    tracked = _track(study, tracker, trials, tuning)
            samples = tuning.race.count
            progress.line(f"  {plural(samples, 'sample')}, {spent_text(tuning.spent, goal.seconds)}")
            for outcome in tracked.values():
                progress.ended(outcome.scenario.name, _line(outcome))
        failed = tuning.ending == "none"
        reported = report_study(experiment, study, tracker, console, failed)
    journal.done()
    lost = sum(isinstance(outcome, Failure) for outcome in tracked.values())
    measured = len(tracked) - lost
    return TuneResult(
        study=study,
        measured=measured,
        failed=lost if failed else 0,
        ending=tuning.ending,
        **vars(reported),
    )


def _track(study: Study, tracker: Tracker, trials: Trials, tuning: Tuning) -> dict[str, Outcome]:
    """Track each candidate that was started, with its result; return the outcomes by name."""
    tracked: dict[str, Outcome] = {}
    for name in trials.of:
        if not trials.rounds[name] and name not in trials.failures and name != tuning.goal.baseline:
            continue  # The answer's run lists the candidates that were never started.
        tracked[name] = _outcome_of(name, trials, tuning)
        tracker.log(study, tracked[name], note=outcome_note(tracked[name]))
    return tracked


def _outcome_of(name: str, trials: Trials, tuning: Tuning) -> Outcome:
    """Merge a candidate's rounds into one outcome; of the proven one and the baseline, only the fresh measurements."""
    candidate = trials.of[name]
    is_baseline = name == tuning.goal.baseline
    place, reason = _result(name, tuning)
    facts: dict[str, Scalar] = {"tuned_for": tuning.goal.objective, "race_place": place, "race_reason": reason}
    if better := tuning.race.better_than(name):
        facts["race_beaten_by"] = ", ".join(better)
    proof_visits = trials.fresh.get((tuning.proven_of, name), [])
    fresh = [proof_visits[number] for number in tuning.proofs.rounds(tuning.proven_of)] if proof_visits else []
    visits = fresh or trials.rounds[name]
    if fresh:
        facts["race_proofs"] = len(tuning.proofs)
    if not visits:
        now = time.time()
        skipped = Failure(scenario_of(candidate, SAMPLE), "skipped", reason, started_at=now, ended_at=now)
        failure = trials.failures.get(name, skipped)
        scenario = replace(failure.scenario, baseline=is_baseline)
        return replace(failure, scenario=scenario, facts={**failure.facts, **facts})
    merged = merge_measurements(
        visits, replace(FRESH if fresh else SAMPLE, min_repeats=min(5, len(visits)), max_repeats=200)
    )
    merged = _with_fresh(merged, tuning.goal.objective, tuning.fresh.get(name, ()))
    ratio = _perplexity_ratio(name, tuning)
    metrics = dict(merged.metrics)
    if ratio is not None:
        metrics["reference_perplexity_ratio"] = ratio.value
    answer = trials.answers.get(name)
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
        merged = replace(merged, items=answer.items)
        scoring_facts = {key: value for key, value in answer.facts.items() if key not in merged.facts}
        convention = ("protocol", "max_length", "bos_rule", "max_tokens")
        facts = {**scoring_facts, **{key: getattr(answer.scenario.task, key) for key in convention}, **facts}
    texts = dict(merged.texts)
    if name == (tuning.winner or tuning.goal.baseline):
        params, reasons = _not_started(tuning)
        facts |= params
        texts["not_tried.json"] = json.dumps(reasons, indent=1) + "\n"
        texts["timeline.csv"] = trials.timeline()
    texts["race.json"] = json.dumps({"race": tuning.race.samples[name], "fresh": tuning.fresh.get(name, [])}) + "\n"
    if name == tuning.winner:
        variant = as_loaded(candidate.variant, merged.facts)
        comment = measured_comment(variant, merged.tags)
        texts["run_it.py"] = comment + generate_program(variant, candidate.task)
        texts["run_it.sh"] = comment + generate_command(variant, candidate.task) + "\n"
    return replace(
        merged,
        scenario=replace(merged.scenario, baseline=is_baseline),
        metrics=metrics,
        facts={**merged.facts, **facts},
        texts=texts,
    )


def _with_fresh(merged: Measurement, objective: str, values: Sequence[float]) -> Measurement:
    """Add the fresh measurements as samples of an objective that has one value per call (energy)."""
    if not values or objective in merged.samples:
        return merged
    summary = summarize(values)
    return replace(
        merged,
        samples={**merged.samples, objective: tuple(values)},
        summaries={**merged.summaries, objective: summary},
        metrics={**merged.metrics, objective: summary.median},
    )


def spent_text(spent: float, budget: float) -> str:
    """Describe the spent budget; a call in progress at its end may exceed it."""
    over = f", {spent - budget:.0f} s over it by the last call" if round(spent) > round(budget) else ""
    return f"{min(spent, budget):.0f} of {budget:.0f} s{over}"


def _not_started(tuning: Tuning) -> tuple[dict[str, Scalar], dict[str, str]]:
    """Return the candidates that were never started, and why: as params in short, and in full by name."""
    hopeless = {
        name: out.why
        for name, out in tuning.race.dropped.items()
        if not tuning.race.samples[name] and out.why.startswith(CANNOT_WIN)
    }
    params: dict[str, Scalar] = {}
    if hopeless:
        params["race_hopeless"] = ", ".join(hopeless)
    names = sorted(tuning.untried, key=tuning.forecast.expected_goodness, reverse=True)
    if names:
        first = [f"{name} ({tuning.untried[name]})" for name in names[:MOST_NAMED]]
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        params["race_not_tried"] = ", ".join([*first, *more])
    return params, {**{name: tuning.untried[name] for name in names}, **hopeless}


def _perplexity_ratio(name: str, tuning: Tuning) -> Ratio | None:
    """Return a candidate's perplexity relative to the baseline as far as scored; 1 if it computes the same numbers."""
    model = tuning.model_of(name)
    return Ratio(1.0, 1.0, 1.0) if model == tuning.model_of(tuning.goal.baseline) else tuning.quality.ratios.get(model)


def _result(name: str, tuning: Tuning) -> tuple[str, str]:
    """Return where a candidate ended in the race, and why."""
    drop = tuning.race.dropped.get(name)
    if name == tuning.winner:
        if tuning.ending == "unproven":
            remedy = f": use budget={budget_text(tuning.needs)}" if tuning.needs else ""
            return "unproven", f"best so far, not proven: {tuning.missing}{remedy}"
        return "winner", _winner_reason(name, tuning)
    if name == tuning.fallback:
        return "proven", f"proven better than the baseline, but {tuning.winner} measured better"
    if name in tuning.untried:
        return "not tried", tuning.untried[name]
    claim = tuning.claim
    if name == tuning.goal.baseline and claim is not None and tuning.winner in tuning.fresh:
        first = f"{drop.why}; " if drop is not None and not drop.by else ""
        if claim.verdict == "better":
            return "dropped", f"{first}{tuning.winner} is better, measured afresh"
    if drop is not None:
        return "dropped", drop.why
    if tuning.winner is None:
        return "open", "the search did not finish"
    if claim is not None and name in tuning.fresh and name != tuning.goal.baseline:
        return "equal", f"no significant difference to {tuning.winner}, measured afresh"
    if name in tuning.race.held:
        unknown = tuning.quality.unscored.get(tuning.model_of(name), "its quality is unknown, and it is not better")
        return "open", unknown
    if tuning.ending == "unproven":
        return "open", "inconclusive when the time was up"
    if name not in tuning.equal:
        samples = len(tuning.race.samples[name])
        return "open", f"{tuning.winner} measured better, inconclusive after {plural(samples, 'sample')}"
    leader = tuning.race.leader()
    or_leader = "" if leader in (name, tuning.winner) else f", nor to {leader}"
    order = tuning.goal.names.index
    simpler = ", which is the simpler one" if order(name) > order(tuning.winner) else ""
    return "equal", f"no significant difference to {tuning.winner}{or_leader}{simpler}"


def _winner_reason(name: str, tuning: Tuning) -> str:
    count = sum(bool(samples) for samples in tuning.race.samples.values())
    reason = (
        f"best of {count} tried"
        if len(tuning.equal) == 1
        else "the simplest without a significant difference to the best"
    )
    ratio = _perplexity_ratio(name, tuning)
    if ratio is not None and ratio.value != 1 and math.isfinite(ratio.high):
        reason += f"; perplexity {change_text(ratio)}"
    return reason


def _line(outcome: Outcome) -> str:
    facts = outcome.facts
    return f"  {outcome.scenario.name}: {facts.get('race_place')}: {facts.get('race_reason')}"
