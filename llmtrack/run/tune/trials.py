"""Measure and score the candidates of a search in a pool, recording each action in a journal."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from llmtrack.decide.goal import Goal, PartScore, SearchState, Trial
from llmtrack.decide.predictor import Prior
from llmtrack.decide.race import Rules
from llmtrack.decide.tuning import Tuning
from llmtrack.engines.options import loaded_as
from llmtrack.metrics import metric
from llmtrack.quality.corpora import Corpus
from llmtrack.run.executors.pool import Pool
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.progress import SearchProgress
from llmtrack.run.tune.priors import prior_of, uncompiled
from llmtrack.run.tune.search_space import Candidate
from llmtrack.spec.events import LOADING, Collected, Event, Log, Progress
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.spec.serialization import from_json, to_json
from llmtrack.spec.task import PerplexityTask, RepeatPolicy

# A sample of the race is the median of a few calls if a call is short.
SAMPLE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0.5, max_seconds=10.0, max_repeats=3, target_ci=10.0)
FRESH = replace(SAMPLE, max_repeats=1, min_seconds=0.0)
MOST_PARTS = 12
# Overhead of a sample beyond its calls.
_OVERHEAD, _OVERHEAD_S = 1.1, 0.1
SEED = 0


@dataclass(frozen=True)
class TuneGoal:
    """What to tune for.

    Attributes:
        scoring: scoring convention; its corpus is replaced.
        most_perplexity: maximum perplexity relative to the baseline, such as 1.01; None for any, and then only the
            answer is scored.
        margin: candidates that differ by less are considered equal.
        cpus: number of CPUs used; 0 for a GPU.
        earlier: ratio to the baseline in earlier runs, by candidate; see `llmtrack.run.tune.priors`.
    """

    objective: str
    seconds: float
    corpus: Corpus
    scoring: PerplexityTask = PerplexityTask()
    most_perplexity: float | None = 1.01
    limits: Mapping[str, float] = field(default_factory=dict)
    margin: float = 0.05
    cpus: int = 1
    start: float = 5.0
    earlier: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Act:
    """An action of a search, with its duration.

    Attributes:
        what: `measure`, `fresh` (the final comparison), `score` or `answer` (the whole text).
        began_s: seconds after the start of the search.
        seconds: duration, including loading and building.
        value: the measured objective; NaN if none.
        why: reason of a failure, else empty.
    """

    what: str
    name: str
    began_s: float
    seconds: float
    value: float
    why: str = ""


class Trials:
    """Measures and scores candidates in a pool, and records the results.

    Attributes:
        acts: actions in order of time.
        before_s: seconds of the budget used before the first action.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        goal: TuneGoal,
        pool: Pool,
        progress: SearchProgress,
        journal: Journal,
        folder: Path,
        clock: Callable[[], float],
        began: float,
    ) -> None:
        self.of = {candidate.name: candidate for candidate in candidates}
        self.goal = goal
        self.rounds: dict[str, list[Measurement]] = {name: [] for name in self.of}
        # By the candidate to be proven, and by the one measured.
        self.fresh: dict[tuple[str, str], list[Measurement]] = {}
        self.answers: dict[str, Measurement] = {}
        self.failures: dict[str, Failure] = {}
        self._pool = pool
        self._progress = progress
        self._journal = journal
        self._clock = clock
        # Actions are sequential: the time between two counts toward the second.
        self._last_end = began
        self.acts: list[Act] = []
        self.before_s = 0.0
        self._gone: set[str] = set()
        self._at = Progress("", LOADING)
        self._text_digests: dict[int, Scalar] = {}
        self._parts = []
        for number, texts in enumerate(parts_of(goal.corpus)):
            path = folder / f"part-{number}.jsonl"
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
            self._parts.append(path)

    def search_goal(self) -> Goal:
        """Return the goal of the search."""
        goal = self.goal
        return Goal(
            names=tuple(self.of),
            objective=goal.objective,
            better=metric(goal.objective).better,
            seconds=goal.seconds,
            most_perplexity=goal.most_perplexity,
            parts=len(self._parts),
            limits=goal.limits,
            rules=Rules(margin=goal.margin),
            new_tokens=next(iter(self.of.values())).task.max_new_tokens,
            on_gpu=not goal.cpus,
            start_s=goal.start,
            prestarted=self._pool.spare,
        )

    def priors(self, measured: Mapping[str, float]) -> Mapping[str, Prior]:
        """Return the prior knowledge of each candidate; a resumed search uses what was recorded."""

        def look() -> Any:
            earlier = self.goal.earlier
            priors = {
                name: replace(prior_of(candidate, self.goal.cpus, measured), earlier=earlier.get(name))
                for name, candidate in self.of.items()
            }
            return to_json(priors, dict[str, Prior])

        priors: dict[str, Prior] = self._journal.act(["ways", bool(measured)], look, partial(_decode_priors, self.of))
        return priors

    def show(self, state: SearchState) -> None:
        """Show the progress."""
        self._progress.at(state)

    def measure(self, name: str, seconds: float) -> Trial:
        """Measure a candidate once, within a time limit."""
        first = not self.rounds[name]
        policy = replace(SAMPLE, warmup=1) if first else SAMPLE
        outcome, took = self._act(
            ["measure", name, len(self.rounds[name])], scenario_of(self.of[name], policy), seconds
        )
        return self._seen(outcome, took, self.rounds[name])

    def measure_afresh(self, name: str, proven: str, seconds: float) -> Trial:
        """Measure the candidate to be proven or the baseline once, reloaded for this proof."""
        done = self.fresh.setdefault((proven, name), [])
        if not done:
            self._pool.free(self.of[name].variant)
        policy = FRESH if done else replace(FRESH, warmup=1)
        outcome, took = self._act(["fresh", proven, name, len(done)], scenario_of(self.of[name], policy), seconds)
        return self._seen(outcome, took, done)

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        """Score a part of the text with a candidate, within a time limit."""
        task = replace(self.goal.scoring, corpus=str(self._parts[part]))
        # Compiling does not change scores and takes long.
        outcome, took = self._act(
            ["score", name, part],
            Scenario(name, uncompiled(self.of[name].variant), task),
            seconds,
            quiet=True,
        )
        if isinstance(outcome, Failure):
            return PartScore(0.0, 0, took, outcome.reason, timed_out=outcome.kind == "timeout")
        text = outcome.facts.get("scored_tokens_digest", "")
        if text != self._text_digests.setdefault(part, text):
            return PartScore(0.0, 0, took, "its tokenizer differs from the baseline's on this text")
        tokens = int(outcome.metrics["tokens_scored"])
        return PartScore(outcome.metrics["loss"] * tokens, tokens, took)

    def score_answer(self, tuning: Tuning) -> None:
        """Score the whole text with the answer and the baseline, so that both have scores comparable to other runs.

        An answer that is over the bound on the whole text is replaced by the next best.
        """
        base = tuning.goal.baseline
        while self._score_whole(base, tuning):
            name = tuning.winner
            if name is None or not self._score_whole(name, tuning):
                return
            ratio = math.exp(self.answers[name].metrics["loss"] - self.answers[base].metrics["loss"])
            if tuning.judge_whole_text(name, ratio):
                return

    def _score_whole(self, name: str, tuning: Tuning) -> bool:
        """Score the whole text with a candidate if there is time; return whether its score is known."""
        room = tuning.goal.seconds - tuning.spent
        if name not in self.answers and room >= tuning.forecast.scoring_s(name) and self.rounds[name]:
            scenario = Scenario(name, uncompiled(self.of[name].variant), self.goal.scoring)
            outcome, took = self._act(["answer", name], scenario, room, quiet=True)
            tuning.spent += took
            if isinstance(outcome, Measurement):
                self.answers[name] = outcome
        return name in self.answers

    def dropped(self, name: str) -> None:
        """Free the model of an eliminated candidate unless another one needs it."""
        self._gone.add(name)
        variant = self.of[name].variant
        model = loaded_as(variant)
        if all(loaded_as(candidate.variant) != model or other in self._gone for other, candidate in self.of.items()):
            self._pool.free(variant)

    def _seen(self, outcome: Outcome, took: float, done: list[Measurement]) -> Trial:
        if isinstance(outcome, Failure):
            self.failures[outcome.scenario.name] = outcome
            phase = self._at.step if outcome.kind == "timeout" else ""
            return Trial({}, took, outcome.reason, timed_out_in=phase)
        done.append(outcome)
        calls = outcome.samples.get("total_latency_s", ())
        repeat_s = _OVERHEAD * sum(calls) + _OVERHEAD_S
        return Trial(outcome.metrics, took, repeat_s=repeat_s, disturbed=outcome.disturbed)

    def _act(self, key: list[Any], scenario: Scenario, seconds: float, quiet: bool = False) -> tuple[Outcome, float]:
        """Measure a scenario, or replay its recorded outcome; return it with its duration."""

        def do() -> dict[str, Any]:
            outcome = self._outcome(scenario, seconds, quiet)
            now = self._clock()
            took, self._last_end = now - self._last_end, now
            return {"outcome": to_json(outcome, Outcome), "seconds": took}

        before = self._journal.taken_over
        result: tuple[Outcome, float] = self._journal.act(key, do, _decode_outcome)
        if self._journal.taken_over > before:
            self._last_end = self._clock()
        self._remember(str(key[0]), *result)
        return result

    def _remember(self, kind: str, outcome: Outcome, took: float) -> None:
        name = outcome.scenario.name
        metrics = {} if isinstance(outcome, Failure) else outcome.metrics
        value = metrics.get(self.goal.objective, math.nan)
        began = self.acts[-1].began_s + self.acts[-1].seconds if self.acts else self.before_s
        reason = outcome.reason if isinstance(outcome, Failure) else ""
        self.acts.append(Act(kind, name, began, took, value, reason))

    def timeline(self) -> str:
        """Return the actions with their times as CSV."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(column.name for column in fields(Act))
        for act in self.acts:
            writer.writerow(f"{value:.2f}" if isinstance(value, float) else value for value in astuple(act))
        return buffer.getvalue()

    def _outcome(self, scenario: Scenario, seconds: float, quiet: bool) -> Outcome:
        def hear(event: Event) -> None:
            if isinstance(event, Progress):
                self._at = event
            if not (quiet and isinstance(event, Log)):
                self._progress.on_event(event)

        # Initial phase: it may have to be loaded, or even built.
        self._at = Progress(scenario.name, LOADING)
        self._progress.step(self._at)
        collected = Collected(hear)
        self._pool.run((scenario,), collected, seconds)
        return collected.outcomes[0]


def _decode_priors(names: Iterable[str], recorded: Any) -> dict[str, Prior]:
    """Decode the recorded knowledge of the candidates.

    Raises:
        ValueError: it is of other candidates, or none.
    """
    priors: dict[str, Prior] = from_json(recorded, dict[str, Prior])
    if priors.keys() != set(names):
        raise ValueError("it is of other candidates")
    return priors


def _decode_outcome(recorded: Any) -> tuple[Outcome, float]:
    return from_json(recorded["outcome"], Outcome), float(recorded["seconds"])


def parts_of(corpus: Corpus) -> list[list[str]]:
    """Split the texts of a corpus randomly but reproducibly into parts of similar length."""
    texts = list(corpus.texts)
    random.Random(SEED).shuffle(texts)
    parts: list[list[str]] = [[] for _ in range(min(MOST_PARTS, len(texts)))]
    for text in texts:
        min(parts, key=lambda part: sum(map(len, part))).append(text)
    return parts


def scenario_of(candidate: Candidate, policy: RepeatPolicy) -> Scenario:
    """Return the scenario that measures a candidate."""
    return Scenario(candidate.name, candidate.variant, candidate.task, policy)
