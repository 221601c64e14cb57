"""The way to the best candidate, told by hands that answer from a table on a clock of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.tune import OBJECTIVES, Config, space_of
from llmtrack.decide.tuning import Goal, PartScore, Seen, Tuning
from llmtrack.errors import UsageError
from llmtrack.metrics import metric


@dataclass
class Table:
    """Answers from known speeds: a first sample takes `first` seconds more; nothing takes longer than it may.

    `values` has what else a candidate measures, `perplexity` its share of the baseline's, `converts` how much longer its first
    sample takes than those of others.
    """

    speeds: dict[str, float]
    first: float
    objective: str = "tokens_per_sec"
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    perplexity: dict[str, float] = field(default_factory=dict)
    converts: dict[str, float] = field(default_factory=dict)
    noise: float = 0.0
    seed: int = 0
    said: list[Seen | PartScore] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.journal = list(self.said)

    def measure(self, name: str, seconds: float) -> Seen:
        return self._seen(name, seconds, name not in self.asked)

    def measure_afresh(self, name: str, seconds: float) -> Seen:
        return self._seen(name, seconds, f"{name} afresh" not in self.asked, " afresh")

    def _seen(self, name: str, seconds: float, first: bool, how: str = "") -> Seen:
        self.asked.append(name + how)
        speed = self.speeds[name] * math.exp(self.noise * self.random.standard_normal())
        again = 1 / speed
        took = again + (self.first + self.converts.get(name, 0.0) if first else 0.0)
        value = speed if metric(self.objective).better == "higher" else again
        seen = Seen({self.objective: value, **self.values.get(name, {})}, took, again=again)
        return self._say(Seen({}, seconds, "not in time") if took > seconds else seen)

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        self.asked.append(f"{name} scored")
        nats = 10.0 * (1 + math.log(self.perplexity.get(name, 1.0)))
        return self._say(
            PartScore(0.0, 0, seconds, "not in time") if seconds < 0.2 else PartScore(nats, 10, 0.2)
        )

    def _say(self, seen):
        self.spent += seen.seconds
        self.said.append(seen)
        return seen

    def dropped(self, name: str) -> None:
        pass


def tuned(hands: Table, seconds: float, **asked) -> Tuning:
    better = metric(hands.objective).better
    task = Goal(tuple(hands.speeds), hands.objective, better, seconds, **{"model_of": {}, **asked})
    tuning = Tuning(task, hands)
    tuning.run()
    return tuning


def test_a_budget_too_short_for_the_claim_still_goes_to_what_was_not_measured_yet():
    # A claim alone takes 2 x (30 + 5 x 20) s: more than there is.
    hands = Table({"base": 0.05, "b": 0.06, "c": 0.07}, first=30.0)
    tuning = tuned(hands, 260.0)
    assert {name for name in hands.asked if " " not in name} == {"base", "b", "c"}
    assert hands.spent <= 1.1 * 260
    assert tuning.claim is not None
    assert not tuning.claim.told
    assert (tuning.winner, tuning.equal[0]) == ("base", "base")


@pytest.mark.parametrize("slow", [["c1"], ["c5"], ["c1", "c2"], ["c10"]])
@pytest.mark.parametrize("seconds", [150.0, 1000.0])
def test_slow_conversions_keep_nobody_else_from_being_measured(slow, seconds):
    """12 ways of 4 s for the first sample, the last one the fastest; some take a third of the budget to convert."""
    speeds = {f"c{number}": 1.0 + 0.1 * number for number in range(12)}
    hands = Table(speeds, first=3.0, converts=dict.fromkeys(slow, 0.3 * seconds))
    tuning = tuned(hands, seconds, most_perplexity=None)
    assert set(hands.asked) >= set(speeds)
    assert tuning.race.choice() == "c11"
    assert hands.spent <= 1.1 * seconds
    given_up = {name for name, out in tuning.race.dropped.items() if out.why == "not in time"}
    assert given_up <= set(slow)


def test_the_winner_is_claimed_from_what_was_measured_afresh():
    tuning = tuned(Table({"base": 1.0, "fast": 2.0}, first=1.0), 100.0)
    assert tuning.winner == "fast"
    assert tuning.claim is not None
    assert tuning.claim.verdict == "better"
    assert tuning.fresh["fast"] == pytest.approx([2.0] * len(tuning.fresh["fast"]))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_won_by_what_is_best_in_it_whichever_way_that_is(objective):
    hands = Table({"base": 1.0, "slow": 0.5, "fast": 2.0}, first=1.0, objective=objective)
    tuning = tuned(hands, 300.0, most_perplexity=None)
    assert tuning.winner == "fast"
    assert tuning.claim is not None
    assert tuning.claim.verdict == "better"
    # A size has no noise, and is not measured afresh.
    assert bool(tuning.fresh) == (objective != "model_size_mib")


@pytest.mark.parametrize(
    ("limit", "key"),
    [("max_memory", "peak_memory_mib"), ("max_ttft", "time_to_first_token_ms"), ("perplexity", "perplexity")],
)
def test_each_limit_is_kept_and_what_breaks_it_says_so(limit, key):
    asked = {"max_memory": {"max_memory": "2GiB"}, "max_ttft": {"max_ttft": 50.0}}.get(limit, {})
    limits = Config(**asked).limits  # type: ignore[arg-type]
    within = {name: most / 2 for name, most in limits.items()}
    values = {"base": within, "kept": within, "broken": {name: 3 * most for name, most in limits.items()}}
    hands = Table({"base": 1.0, "broken": 3.0, "kept": 2.0}, first=1.0, values=values)
    if limit == "perplexity":
        hands.perplexity = {"broken": 1.02}
    tuning = tuned(hands, 300.0, limits=limits, parts=4)
    assert tuning.winner == "kept"
    assert key in tuning.race.dropped["broken"].why
    assert "is over" in tuning.race.dropped["broken"].why


def test_what_cannot_be_measured_here_is_said_after_one_measurement():
    hands = Table({"base": 1.0, "fast": 2.0}, first=1.0)
    task = Goal(tuple(hands.speeds), "joules_per_token", "lower", 100.0, {})
    tuning = Tuning(task, hands)
    tuning.run()
    assert hands.asked == ["base"]
    assert tuning.winner is None
    assert {out.why for out in tuning.race.dropped.values()} == {"no joules_per_token can be measured here"}


def test_the_work_and_the_budget_are_as_asked():
    config = Config(prompt_tokens=7, new_tokens=3, budget="90s")
    assert config.seconds == 90.0
    machine = {
        "devices": "cpu",
        "threads": "1",
        "bfloat16": "cpu",
    }  # more than the baseline, whatever is installed
    tasks = {each.task for each in space_of(config, machine).candidates}
    assert {(task.prompt_tokens, task.max_new_tokens) for task in tasks} == {(7, 3)}
    for text, seconds in {"10m": 600.0, "1h": 3600.0, "1.5 min": 90.0, "45": 45.0}.items():
        assert Config(budget=text).seconds == seconds
    for text in ("soon", "0s", "-1m"):
        with pytest.raises(UsageError):
            Config(budget=text)


SITUATIONS = {
    "seed": st.integers(0, 2**32 - 1),
    "speeds": st.lists(st.floats(0.2, 5.0), min_size=2, max_size=12),
    "first": st.floats(0.0, 20.0),
    "share": st.floats(0.1, 3.0),
}


def situation(seed, speeds, first, share):
    """Hands, and a budget that is a share of what measuring each candidate 6 times takes."""
    of = {f"c{number}": speed for number, speed in enumerate(speeds)}
    losses = np.random.default_rng(seed).choice([1.0, 1.002, 1.1], len(of))
    lossy = dict(zip(of, map(float, losses), strict=True)) | {"c0": 1.0}
    seconds = share * sum(first + 6 / speed for speed in speeds)
    return Table(of, first, perplexity=lossy, noise=0.02, seed=seed), seconds


@settings(max_examples=40, deadline=None)
@given(**SITUATIONS)
def test_whatever_is_measured_the_budget_is_kept_and_the_answer_keeps_to_the_bound(
    seed, speeds, first, share
):
    hands, seconds = situation(seed, speeds, first, share)
    tuning = tuned(hands, seconds, parts=6)
    assert hands.spent <= 1.1 * seconds + 1e-9
    assert tuning.spent == pytest.approx(hands.spent)
    assert tuning.winner is None or hands.perplexity[tuning.winner] <= 1.01


@settings(max_examples=20, deadline=None)
@given(**SITUATIONS, cut=st.floats(0.0, 1.0))
def test_wherever_it_is_killed_it_goes_on_to_the_same_answer_without_doing_again_what_is_done(
    seed, speeds, first, share, cut
):
    whole, seconds = situation(seed, speeds, first, share)
    before = tuned(whole, seconds, parts=6)
    journal = whole.said[: int(cut * len(whole.said))]

    class Resumed(Table):
        """Takes what was said before it was killed from the journal; what its clock would have said since is the same."""

        def _say(self, seen):
            told = journal[len(self.said)] if len(self.said) < len(journal) else seen
            return super()._say(told)

    hands, _ = situation(seed, speeds, first, share)
    again = Resumed(hands.speeds, first, perplexity=hands.perplexity, noise=0.02, seed=seed)
    after = tuned(again, seconds, parts=6)
    assert (after.winner, after.equal, after.race.dropped) == (
        before.winner,
        before.equal,
        before.race.dropped,
    )
    assert again.asked == whole.asked
