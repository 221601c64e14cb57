"""The search is right at any time: told by trials that answer from a table, or in scripted worlds, on clocks of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search_world import World, search
from benchmarks.tune import LOADS
from experiments.tune import OBJECTIVES, Config, space_of
from llmtrack.decide.differences import Ratio
from llmtrack.decide.evidence import budget_text
from llmtrack.decide.goal import Goal, PartScore, SearchState, Trial
from llmtrack.decide.predictor import Prior
from llmtrack.decide.tuning import CANNOT_WIN, Tuning
from llmtrack.errors import UsageError
from llmtrack.metrics import metric


@dataclass
class Table:
    """Answers from known speeds: a first sample takes `first` seconds more; nothing takes longer than it may.

    `values` has what else a candidate measures, `perplexity` its share of the baseline's, `converts` how much longer its first
    sample takes than those of others, `fails` why it cannot run.
    """

    speeds: dict[str, float]
    first: float = 1.0
    objective: str = "tokens_per_sec"
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    perplexity: dict[str, float] = field(default_factory=dict)
    converts: dict[str, float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    known: dict[str, Prior] = field(default_factory=dict)
    unscorable: set[str] = field(default_factory=set)
    noise: float = 0.0
    seed: int = 0
    said: list[Trial | PartScore] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    shown: list[SearchState] = field(default_factory=list)
    spent: float = 0.0
    loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def priors(self, measured):
        return {name: self.known.get(name) or Prior("torch", name) for name in self.speeds}

    def measure(self, name: str, seconds: float) -> Trial:
        return self._seen(name, seconds)

    def measure_afresh(self, name: str, proven: str, seconds: float) -> Trial:
        return self._seen(name, seconds, " afresh")

    def _seen(self, name: str, seconds: float, how: str = "") -> Trial:
        self.asked.append(name + how)
        first = name + how not in self.loaded
        speed = self.speeds[name] * math.exp(self.noise * self.random.standard_normal())
        again = 1 / speed
        took = again + (self.first + (0.0 if how else self.converts.get(name, 0.0)) if first else 0.0)
        value = speed if metric(self.objective).better == "higher" else again
        seen = Trial({self.objective: value, **self.values.get(name, {})}, took, repeat_s=again)
        if took > seconds:
            seen = Trial({}, seconds, "not in time", timed_out_in="loading")
        elif name in self.fails:
            seen = Trial({}, took, self.fails[name])
        else:
            self.loaded.add(name + how)
        return self._say(seen)

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        self.asked.append(f"{name} scored")
        if name in self.unscorable:
            return self._say(PartScore(0.0, 0, 0.1, "other tokens"))
        nats = 10.0 * (1 + math.log(self.perplexity.get(name, 1.0)))
        return self._say(PartScore(0.0, 0, seconds, "not in time") if seconds < 0.2 else PartScore(nats, 10, 0.2))

    def _say(self, seen):
        self.spent += seen.seconds
        self.said.append(seen)
        return seen

    def dropped(self, name: str) -> None:
        pass

    def show(self, state: SearchState) -> None:
        self.shown.append(state)


def tuned(trials: Table, seconds: float, **asked) -> Tuning:
    better = metric(trials.objective).better
    tuning = Tuning(Goal(tuple(trials.speeds), trials.objective, better, seconds, **asked), trials)
    tuning.run()
    return tuning


def first_asked(trials: Table) -> list[str]:
    return list(dict.fromkeys(name for name in trials.asked if " " not in name))


# --- three endings


def test_an_answer_with_proof_is_claimed_from_fresh_samples_and_within_the_bound():
    trials = Table({"base": 1.0, "fast": 2.0}, perplexity={"fast": 1.005})
    tuning = tuned(trials, 100.0, parts=4)
    assert (tuning.ending, tuning.winner, tuning.missing) == ("proven", "fast", "")
    assert tuning.claim is not None
    assert tuning.claim.verdict == "better"
    assert tuning.fresh["fast"] == pytest.approx([2.0] * len(tuning.fresh["fast"]))
    assert "fast scored" in trials.asked


@pytest.mark.parametrize("unknown", ["its quality", "the baseline's"])
def test_what_is_better_and_cannot_be_scored_is_named_and_not_dropped(unknown):
    trials = Table({"base": 1.0, "fast": 2.0}, unscorable={"fast" if unknown == "its quality" else "base"})
    tuning = tuned(trials, 100.0)
    assert (tuning.ending, tuning.winner) == ("unproven", "fast")
    whose = "its" if unknown == "its quality" else "the baseline's"
    assert f"{whose} quality could not be scored: other tokens" in tuning.missing
    assert "fast" not in tuning.race.dropped


def test_where_no_time_is_left_for_the_proof_the_best_is_named_with_the_budget_that_gives_it():
    # 11 s the baseline, 11 s the candidate and a second look; the fresh comparison alone takes 2 x (1 + 4 x 10) s.
    trials = Table({"base": 0.1, "fast": 0.11}, known={name: Prior("torch", "same") for name in ("base", "fast")})
    tuning = tuned(trials, 60.0)
    assert (tuning.ending, tuning.winner) == ("unproven", "fast")
    assert "not measured afresh" in tuning.missing
    # Of the budget that it names, it ends with the proof.
    again = Table(trials.speeds, known=trials.known)
    assert tuned(again, tuning.needs).ending == "proven"


@dataclass
class Late(Table):
    """One call of one candidate is not in time: its first, or one after several."""

    late: str = ""
    after: int = 0

    def measure(self, name: str, seconds: float) -> Trial:
        if name != self.late or self.asked.count(name) != self.after:
            return super().measure(name, seconds)
        self.asked.append(name)
        return self._say(Trial({}, 1.0, "not in time", timed_out_in="repeat 1"))


@pytest.mark.parametrize(("late", "after"), [("base", 1), ("fast", 2), ("close", 3), ("fast", 0)])
def test_what_was_measured_stands_though_another_call_was_not_in_time(late, after):
    trials = Late({"base": 1.0, "fast": 2.0, "close": 1.98}, noise=0.02, late=late, after=after)
    tuning = tuned(trials, 100.0, parts=4)
    assert trials.asked.count(late) > after
    assert (tuning.ending, tuning.untried) == ("proven", {})
    assert not [out.why for out in tuning.race.dropped.values() if "in time" in out.why]


def test_a_candidate_that_promises_far_more_and_does_not_fit_into_the_time_is_named():
    slow = Prior("onnx", "int8", 8.0, builds={"exporting": 70.0})
    trials = Table({"base": 1.0, "slow": 4.0}, converts={"slow": 70.0}, known={"slow": slow})
    tuning = tuned(trials, 45.0)
    assert (tuning.ending, tuning.winner) == ("unproven", "base")
    assert "slow promises" in tuning.missing
    assert "of conversion: raise the budget to" in tuning.untried["slow"]
    assert "slow" not in trials.asked
    again = Table(trials.speeds, converts=trials.converts, known=trials.known)
    assert (tuned(again, tuning.needs).winner, again.asked.count("slow") > 0) == ("slow", True)


def test_the_best_so_far_comes_with_the_untried_one_that_promises_far_more():
    priors = {"slow": Prior("onnx", "int8", 8.0, builds={"exporting": 900.0})}
    priors |= {name: Prior("torch", "same") for name in ("base", "fast")}
    trials = Table({"base": 0.1, "fast": 0.15, "slow": 4.0}, converts={"slow": 900.0}, known=priors)
    tuning = tuned(trials, 60.0)
    assert (tuning.ending, tuning.winner) == ("unproven", "fast")
    assert tuning.missing.startswith("it was not measured afresh against the baseline; slow promises")
    assert tuning.needs > 900


def test_one_sample_of_what_measured_worse_makes_it_no_equal():
    trials = Table({"base": 0.1, "fast": 0.2, "other": 0.14}, noise=0.08)
    tuning = tuned(trials, 160.0, most_perplexity=None)
    assert (tuning.ending, tuning.winner, tuning.equal) == ("proven", "fast", ["fast"])
    assert len(tuning.race.samples["other"]) == 1
    assert "other" not in tuning.race.dropped


def test_where_nothing_is_better_the_baseline_is_the_answer_and_what_is_equal_is_named():
    tuning = tuned(Table({"base": 1.0, "same": 1.0, "slow": 0.3}, noise=0.01), 100.0, most_perplexity=None)
    assert (tuning.ending, tuning.winner) == ("proven", "base")
    assert "same" in tuning.equal
    assert "slow" in tuning.race.dropped


def test_where_nothing_can_be_measured_there_is_no_answer():
    tuning = tuned(Table({"base": 1.0, "b": 1.0}, fails={"base": "out of memory", "b": "not here"}), 100.0)
    assert (tuning.ending, tuning.winner) == ("none", None)
    assert {out.why for out in tuning.race.dropped.values()} == {"out of memory", "not here"}


def test_where_the_baseline_cannot_be_measured_the_best_of_the_others_is_named_without_proof():
    trials = Table({"base": 1.0, "b": 2.0, "c": 1.0}, fails={"base": "out of memory"})
    tuning = tuned(trials, 100.0, most_perplexity=None)
    assert (tuning.ending, tuning.winner) == ("unproven", "b")
    assert "the baseline could not be measured" in tuning.missing


def test_a_budget_too_small_for_the_baseline_ends_with_one_that_would_do():
    tuning = tuned(Table({"base": 0.02, "fast": 1.0}, first=40.0), 60.0)
    assert (tuning.ending, tuning.winner) == ("none", None)
    assert tuning.race.dropped["base"].why == "the baseline was not measured in time (loading): use budget=3m"


def test_what_is_claimed_is_of_the_answer_where_two_were_measured_afresh():
    """`best`, expected to load too long for its proof, loads fast: the claim and the samples are of its own proof."""
    best = Prior("onnx", "best", 32.0, loads=60.0)
    trials = Table({"base": 1.0, "good": 2.0, "best": 4.0}, known={"best": best})
    tuning = tuned(trials, 100.0, most_perplexity=None)
    assert (tuning.ending, tuning.winner) == ("proven", "best")
    assert set(tuning.fresh) == {"base", "best"}
    assert tuning.claim is not None
    assert tuning.claim.candidate == pytest.approx(4.0)
    # Two comparisons with the baseline were made: each is corrected for both, for which 4 against 4 would be too few.
    assert (len(tuning.proofs), tuning.proven_of) == (2, "best")
    assert tuning.claim.p_adjusted == pytest.approx(2 * tuning.claim.p_value)
    assert len(tuning.fresh["best"]) >= 5


def test_the_evidence_of_an_unproven_answer_is_the_proof_of_the_best_proven_one():
    trials = Table({"base": 1.0, "good": 2.0, "best": 4.0}, unscorable={"best"})
    tuning = tuned(trials, 200.0, parts=2)
    assert (tuning.winner, tuning.proven_of) == ("best", "good")
    assert tuning.claim is not None
    assert tuning.claim.verdict == "better"


def test_what_is_measured_to_be_better_after_a_proof_is_named_before_what_is_proven():
    trials = Table({"base": 1.0, "good": 2.0, "best": 4.0}, unscorable={"best"})
    tuning = tuned(trials, 200.0, parts=2)
    assert (tuning.ending, tuning.winner, tuning.fallback) == ("unproven", "best", "good")


# --- promise first


def test_the_most_promising_per_second_is_tried_first():
    priors = {
        "float16": Prior("torch", "float16", 16.0),
        "int8": Prior("onnx", "int8", 8.0, builds={"exporting": 60.0}),
        "int8 late": Prior("onnx", "int8 late", 8.0, builds={"exporting": 60.0, "searching": 300.0}),
    }
    speeds = {"base": 1.0, "int8 late": 3.0, "float16": 1.6, "int8": 3.0}
    trials = Table({name.replace(" ", "_"): speed for name, speed in speeds.items()})
    trials.known = {name.replace(" ", "_"): prior for name, prior in priors.items()}
    tuned(trials, 400.0, parts=2)
    assert first_asked(trials)[:3] == ["base", "float16", "int8"]


def test_one_that_cannot_win_is_dropped_without_being_started_and_says_why():
    """At 10 GB/s the weights of 1 GB of the baseline allow 16 steps a second; a leader of 30 has half as many bytes."""
    base = {
        "inter_token_latency_ms": 200.0,
        "time_to_first_token_ms": 100.0,
        "copy_bandwidth_gb_per_s": 10.0,
        "decode_mib": 1e9 / 2**20,
        "model_size_mib": 1e9 / 2**20,
    }
    priors = {
        "small": Prior("onnx", "small", 8.0),
        "large": Prior("onnx", "large", 32.0, loads=100.0),
        "base": Prior("torch", "base"),
    }
    trials = Table(
        {"base": 5.0, "large": 5.0, "small": 30.0},
        objective="decode_tokens_per_sec",
        values={"base": base},
        known=priors,
    )
    tuning = tuned(trials, 100.0, parts=2)
    assert "large" not in trials.asked
    # 10 GB/s x 1.6, which a read can reach of a copy, over 1 GB.
    assert tuning.race.dropped["large"].why == f"{CANNOT_WIN}: at most 16 tokens/s by its weights"
    assert (tuning.winner, tuning.ending) == ("small", "proven")


def test_a_long_conversion_is_not_begun_for_what_promises_no_more_than_the_leader():
    priors = {
        "quick": Prior("onnx", "quick", 8.0),
        "kin": Prior("onnx", "kin", 8.0),
        "gptq": Prior("onnx", "gptq", 8.0, builds={"gptq": 120.0}),
    }
    trials = Table({"base": 1.0, "quick": 4.0, "kin": 2.8, "gptq": 2.8}, known=priors, converts={"gptq": 120.0})
    tuning = tuned(trials, 600.0, parts=2)
    assert tuning.winner == "quick"
    assert "gptq" not in trials.asked


def test_an_answer_is_scored_once_three_candidates_were_tried():
    names = [f"c{number}" for number in range(10)]
    trials = Table({"base": 1.0, **{name: 2.0 + 0.1 * number for number, name in enumerate(names)}})
    tuned(trials, 300.0, parts=3)
    before = trials.asked[: trials.asked.index("base scored")]
    assert len({name for name in before if name in names}) == 3


# --- fixed costs are not the candidate's fault


@pytest.mark.parametrize("slow", [["c1"], ["c5"], ["c1", "c2"], ["c10"]])
def test_slow_conversions_keep_nobody_else_from_being_measured(slow):
    """12 ways of 4 s for the first sample, the last one the fastest; some take a third of the budget to convert."""
    speeds = {f"c{number}": 1.0 + 0.1 * number for number in range(12)}
    trials = Table(speeds, first=3.0, converts=dict.fromkeys(slow, 300.0))
    tuning = tuned(trials, 1000.0, most_perplexity=None)
    assert tuning.race.samples["c11"]
    assert tuning.winner == "c11"
    assert trials.spent <= 1000


@pytest.mark.parametrize("predicted", [40.0, 70.0])
@pytest.mark.parametrize("budget", [140.0, 170.0, 250.0])
def test_a_conversion_that_overruns_leaves_the_time_of_the_proof(predicted, budget):
    """It is predicted to fit beside the proof and hangs: what is left when it is given up is enough for the proof."""
    trials = Table({"base": 1.0, "good": 1.5, "slow": 1.6}, first=10.0, converts={"slow": 1e6})
    trials.known = {
        "base": Prior("torch", "base", loads=10.0),
        "good": Prior("torch", "good", loads=10.0, earlier=1.5),
        "slow": Prior("onnx", "slow", 8.0, builds={"build slow": predicted}, loads=10.0, earlier=1.7),
    }
    tuning = tuned(trials, budget, most_perplexity=None)
    assert "given up after" in tuning.untried["slow"]
    assert (tuning.ending, tuning.winner) == ("proven", "good")
    assert trials.spent <= budget


def test_one_that_was_given_up_is_not_taken_for_refused():
    trials = Table({"base": 1.0, "hangs": 9.0, "good": 1.5}, converts={"hangs": 1e6})
    trials.known = {"hangs": Prior("onnx", "hangs", 8.0)}
    tuning = tuned(trials, 200.0, most_perplexity=None)
    assert trials.asked.count("hangs") <= 2
    assert "hangs" not in tuning.race.dropped
    assert "given up after" in tuning.untried["hangs"]
    assert (tuning.ending, tuning.winner) == ("unproven", "good")


def test_a_runtime_whose_candidates_fail_alike_is_not_tried_further():
    names = [f"genai {number}".replace(" ", "_") for number in range(6)]
    trials = Table({"base": 1.0, "good": 1.2, **dict.fromkeys(names, 3.0)}, first=5.0)
    trials.known = {name: Prior("genai", name, 8.0) for name in names}
    trials.fails = dict.fromkeys(names, "its builder does not know the model")
    tuning = tuned(trials, 300.0, most_perplexity=None)
    assert len([name for name in trials.asked if name in names]) == 2
    assert sum(out.why.startswith("as the others of its runtime") for out in tuning.race.dropped.values()) == 4
    assert tuning.winner == "good"


def test_the_baseline_is_measured_whatever_it_takes():
    trials = Table({"base": 0.02, "fast": 1.0}, first=40.0, known={"fast": Prior("onnx", "fast", 8.0)})
    tuning = tuned(trials, 100.0, most_perplexity=None)
    assert tuning.race.samples["base"] == pytest.approx([0.02])
    assert (tuning.winner, tuning.ending) == ("base", "unproven")


# --- objectives and limits


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_won_by_what_is_best_in_it_whichever_way_that_is(objective):
    trials = Table({"base": 1.0, "slow": 0.5, "fast": 2.0}, objective=objective)
    tuning = tuned(trials, 300.0, most_perplexity=None)
    assert (tuning.winner, tuning.ending) == ("fast", "proven")
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
    trials = Table({"base": 1.0, "broken": 3.0, "kept": 2.0}, values=values)
    if limit == "perplexity":
        trials.perplexity = {"broken": 1.02}
    tuning = tuned(trials, 300.0, limits=limits, parts=4)
    assert (tuning.winner, tuning.ending) == ("kept", "proven")
    assert key in tuning.race.dropped["broken"].why
    assert "is over" in tuning.race.dropped["broken"].why


def test_an_answer_that_is_over_the_bound_on_the_whole_text_is_replaced_by_what_it_had_beaten():
    speeds = {"base": 1.0, "fast": 4.0, "next": 2.0, "lossy": 1.9, "slow": 0.5}
    trials = Table(speeds, perplexity={"lossy": 1.05}, noise=0.01)
    tuning = tuned(trials, 300.0, parts=4)
    assert (tuning.winner, tuning.race.dropped["next"].by) == ("fast", "fast")
    assert tuning.judge_whole_text("fast", 1.008)
    assert (tuning.winner, tuning.ending) == ("fast", "proven")
    assert not tuning.judge_whole_text("fast", 1.011)
    # The proof of the first says nothing of the second.
    assert (tuning.winner, tuning.ending, tuning.proven_of) == ("next", "unproven", "")
    assert tuning.needs > 300
    assert tuning.race.dropped["fast"].why == "perplexity +1.1 % is over +1 %"


@pytest.mark.parametrize("most", [1.01, None])
def test_the_ratio_on_the_whole_text_replaces_that_of_its_parts(most):
    tuning = tuned(Table({"base": 1.0, "fast": 4.0}), 100.0, parts=4, most_perplexity=most)
    assert tuning.judge_whole_text("fast", 1.002)
    assert tuning.quality.ratios == {"fast": Ratio(1.002, 1.002, 1.002)}


def test_what_cannot_be_measured_here_is_said_after_one_measurement():
    trials = Table({"base": 1.0, "fast": 2.0})
    tuning = Tuning(Goal(tuple(trials.speeds), "joules_per_token", "lower", 100.0), trials)
    tuning.run()
    assert trials.asked == ["base"]
    assert (tuning.winner, tuning.ending) == (None, "none")
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
    assert [budget_text(each) for each in (1, 31, 90, 91, 200)] == ["30s", "45s", "90s", "2m", "4m"]


# --- whatever the situation

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
def test_whatever_is_measured_the_budget_is_kept_and_what_is_proven_keeps_to_the_bound(seed, speeds, first, share):
    trials, seconds = situation(seed, speeds, first, share)
    tuning = tuned(trials, seconds, parts=6)
    assert trials.spent <= 1.1 * seconds + 1e-9
    assert tuning.spent == pytest.approx(trials.spent)
    if tuning.ending == "proven":
        assert tuning.winner is not None
        assert trials.perplexity[tuning.winner] <= 1.01
    # Whatever measured better than the answer is out for a reason other than want of time. What was not told from the baseline
    # afresh, by more samples than the race has, is no better, whatever it measured there.
    if tuning.ending == "proven":
        fresh = tuning.fresh if tuning.winner == "c0" else ()
        best = max(map(tuning.race.goodness, {tuning.winner, *fresh}))
        for name in tuning.race.tried:
            assert tuning.race.goodness(name) <= best + math.log(1.06)


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

    trials, _ = situation(seed, speeds, first, share)
    again = Resumed(trials.speeds, first, perplexity=trials.perplexity, noise=0.02, seed=seed)
    after = tuned(again, seconds, parts=6)
    assert (after.winner, after.ending, after.equal, after.race.dropped) == (
        before.winner,
        before.ending,
        before.equal,
        before.race.dropped,
    )
    assert again.asked == whole.asked


def found_in(loads, seeds):
    return [
        search(World(seed, candidates, **load), seconds)
        for load in loads
        for candidates in (3, 8, 24, 60)
        for seconds in (60.0, 180.0, 900.0)
        for seed in range(seeds)
    ]


@pytest.mark.slow(4)
def test_the_best_is_named_though_another_program_comes_and_goes():
    """It slows a way on all cores four times as much as others; a sample of that minute used to drop the best for good."""
    found = found_in([load for load in LOADS.values() if "bursts" in load], 3)
    reached = [each for each in found if each.reached]
    assert len(reached) >= 20
    assert sum(each.right for each in reached) >= 0.85 * len(reached), "21 of 32 by the rule before"
    assert not any(each.false for each in found)


@pytest.mark.slow(9)
def test_in_worlds_of_fixed_costs_the_best_is_named_where_it_is_reached_and_no_claim_is_false():
    """3 to 60 candidates, 60 to 900 s, six levels of load, fixed costs of 2 to 60 s, failing and hanging starts."""
    found = found_in([load for load in LOADS.values() if "bursts" not in load], 3)
    reached = [each for each in found if each.reached]
    assert len(reached) >= 50
    assert sum(each.right for each in reached) >= 0.95 * len(reached)
    assert sum(each.false for each in found) <= 0.05 * len(found)
    # Only where the baseline alone takes longer than the budget is there no answer.
    none = [each for each in found if each.ending == "none"]
    assert all(each.seconds == pytest.approx(60.0) for each in none)
