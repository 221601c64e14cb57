"""Tuning on scripted engines of known speed and quality: the best within the bounds is found, tracked and proven."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import dataclass, field, replace

import pytest

from experiments import tune
from llmtrack.decide.tuning import Tuning
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.quality.corpora import load_corpus
from llmtrack.report.page import reports as report_of_study
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.pool import Pool
from llmtrack.run.tune.search_space import Candidate, Space
from llmtrack.run.tune.trials import Trials, TuneGoal, parts_of
from llmtrack.run.tune.tune import NOT_PROVEN, run_tune
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask
from llmtrack.tracking.read.artifacts import artifact_text, raw_samples
from llmtrack.tracking.read.query import runs, tracked_runs

TASK = GenerateTask(("abc",), max_new_tokens=5)
# Seconds a step, nats a token, and seconds to load, by quantization.
WAYS = {"none": (0.1, 1.0, 1.0), "small": (0.05, 1.002, 2.0), "lossy": (0.02, 1.5, 2.0), "slow": (0.3, 1.0, 1.0)}


SHORT = replace(load_corpus("builtin"), texts=tuple(text[:40] for text in load_corpus("builtin").texts[:12]))


@dataclass
class Machine:
    """Loads scripted engines, and counts their calls."""

    ways: dict[str, tuple[float, float, float]]
    # Nats a token from now on, by quantization.
    nll: dict[str, float] = field(default_factory=dict)
    noise: float = 0.01
    clock: FakeClock = field(default_factory=FakeClock)
    loaded: list[str] = field(default_factory=list)
    scored: list[str] = field(default_factory=list)
    stop_after: int = 10**9
    calls: int = 0

    def load(self, variant: Variant) -> ScriptedEngine:
        step, nll, loading = self.ways[variant.quantization]
        if step <= 0:
            raise MemoryError("too large")
        self.loaded.append(variant.quantization)
        self.clock.advance(loading)
        generator = random.Random(len(self.loaded))
        scripts = [
            Script(step * factor, step * factor)
            for factor in (generator.lognormvariate(0, self.noise) for _ in range(300))
        ]
        machine = self

        class Engine(ScriptedEngine):
            def generate(self, request, on_step):
                machine.calls += 1
                if machine.calls > machine.stop_after:
                    raise KeyboardInterrupt
                return super().generate(request, on_step)

            def score(self, input_ids, attention_mask, scored=None):
                if scored is None and len(input_ids) > 0 and input_ids.shape[1] > 5:
                    machine.scored.append(variant.quantization)
                self._nll = machine.nll.get(variant.quantization, nll)
                self.clock.advance(0.1)
                return super().score(input_ids, attention_mask, scored)

        return Engine(self.clock, *scripts, nll=nll)

    def pool(self) -> Pool:
        return Pool(lambda: InlineExecutor(self.load, self.clock), is_full=lambda: False)


def space(ways=WAYS) -> Space:
    candidates = tuple(
        Candidate(name, Variant(model="synthetic:tiny", device="cpu", quantization=name), TASK, number)
        for number, name in enumerate(ways)
    )
    return Space(candidates, (("absent", "not installed"),))


@pytest.fixture
def go(tracker, console, monkeypatch, _known_ceilings):
    def tuned(machine, seconds=600.0, resume=False, ways=None, **settings):
        arguments = {"corpus": SHORT, "scoring": PerplexityTask(), "most_perplexity": 1.01, **settings}
        return run_tune(
            replace(tune.build(tune.Config()), plots=lambda runs, series: {}),
            space(ways or machine.ways),
            TuneGoal("decode_tokens_per_sec", seconds, **arguments),
            tracker=tracker,
            pool=machine.pool(),
            console=console,
            resume=resume,
            clock=machine.clock,
        )

    return tuned


@pytest.fixture
def _no_pictures(monkeypatch):
    """Skip the report's plots, which these tests do not look at."""
    monkeypatch.setattr(report_of_study, "write_report", lambda *of, **options: {})


def places(uri):
    tracked = runs(tracking_uri=uri)
    place, why = (dict(zip(tracked["scenario"], tracked[key], strict=True)) for key in ("race_place", "race_reason"))
    return place, why


@pytest.mark.slow(4)
def test_the_fastest_within_the_bound_wins_and_the_others_say_why_not(go, uri, console):
    machine = Machine({**WAYS, "huge": (0.0, 1.0, 0.0)})
    result = go(machine)
    # What cannot be loaded is a failed run, and the race goes on.
    assert result.exit_code == 0
    place, why = places(uri)
    assert place == {**dict.fromkeys(machine.ways, "dropped"), "small": "winner"}
    assert not result.exit_code
    assert "perplexity" in why["lossy"]
    assert "is over +1 %" in why["lossy"]
    assert why["none"] == "small is better, measured afresh"
    assert why["slow"] in ("small is better", "none is better")
    slow = next(run for run in tracked_runs(tracking_uri=uri) if run.scenario == "slow")
    assert why["slow"] == f"{slow.text('race_beaten_by').partition(', ')[0]} is better"
    # How much better, the sentence and the table say, from the same samples: a reason gives no second ratio.
    assert not any(re.search(r"\dx", reason) for reason in why.values())
    # What is hopeless is scored by nobody, and what has been told is scored no further.
    assert "slow" not in machine.scored
    answer = result.reading[0]
    assert answer.startswith("Run small for scripted on cpu: 2.0")
    assert "of none at +" in answer
    assert "left out: absent: not installed" in console.file.getvalue()
    assert machine.clock.now <= 1.1 * 600
    # Both are loaded anew for the claim, which is made from what was measured then.
    assert machine.loaded.count("small") == machine.loaded.count("none") == 2
    tracked = runs(tracking_uri=uri).set_index("scenario")
    assert tracked.loc["huge", "status"] == "FAILED"
    for name in ("none", "small"):
        run_id = tracked.loc[name, "run_id"]
        held = json.loads(artifact_text(run_id, "race.json", uri))
        assert raw_samples(run_id, uri)["decode_tokens_per_sec"] == pytest.approx(held["fresh"])
        assert 5 <= len(held["fresh"]) <= 12
    champion = tracked.loc["small", "run_id"]
    assert tracked.loc["small", "race_place"] == "winner"
    assert "quantization='small'" in artifact_text(champion, "run_it.py", uri)
    assert artifact_text(champion, "run_it.py", uri).startswith("# measured with scripted")
    assert "--quantization small" in artifact_text(champion, "run_it.sh", uri)
    drawn = tune.plots(tracked_runs(tracking_uri=uri), lambda run_id, name: [])
    assert list(drawn) == ["pareto"]


@pytest.mark.slow(3)
@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("others", [0, 12])
def test_a_proven_answer_has_its_ratio_however_many_candidates_were_tried(go, uri, others):
    """The least samples that prove it, 4 against 4, would be too few for a dozen comparisons."""
    slower = {f"other-{number}": (0.12 + number / 1000, 1.0, 1.0) for number in range(others)}
    machine = Machine({"none": (0.1, 1.0, 1.0), "small": (0.02, 1.0, 1.0), **slower})
    # 34 s of samples for the others; a proof of 4 against 4 takes 6 s.
    result = go(machine, seconds=60.0 if others else 14.0)
    assert result.exit_code == 0
    match = re.match(r"Run small for scripted on cpu: 5\.\d+x \(.* measured afresh (\d+) times", result.reading[0])
    assert match, result.reading[0]
    tracked = runs(tracking_uri=uri).set_index("scenario")
    for name in ("none", "small"):
        assert len(raw_samples(tracked.loc[name, "run_id"], uri)["decode_tokens_per_sec"]) == int(match[1])
        assert tracked.loc[name, "race_proofs"] == 1


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_no_pictures")
def test_the_baseline_of_a_second_proof_has_the_samples_of_that_proof_alone(go, uri, monkeypatch):
    """Proofs are minutes apart: samples of the first would bring their drift into the second."""

    def prove_twice(tuning):
        if tuning.race.choice() != "good" or not ready(tuning):
            return ready(tuning)
        tuning.race.drop("good", "for this test")
        return True

    ready = Tuning._prove
    monkeypatch.setattr(Tuning, "_prove", prove_twice)
    machine = Machine({"none": (0.1, 1.0, 1.0), "good": (0.02, 1.0, 1.0), "next": (0.02, 1.0, 1.0)})
    result = go(machine)
    assert (result.exit_code, machine.loaded.count("none")) == (0, 3)
    match = re.match(r"Run next for scripted on cpu: .* measured afresh (\d+) times against (\d+)", result.reading[0])
    assert match, result.reading[0]
    assert match[1] == match[2]
    tracked = runs(tracking_uri=uri).set_index("scenario")
    assert list(tracked.loc[["none", "next"], "race_proofs"]) == [2, 2]


@pytest.mark.slow(4)
@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize(("nll", "winner"), [(1.008, "small"), (1.02, "next")])
def test_the_quality_of_the_answer_is_scored_on_the_whole_text(go, uri, monkeypatch, nll, winner):
    """The first parts alone may be within a bound that the whole text exceeds."""

    def whole(trials, name, tuning):
        machine.nll = {"small": nll}
        return score(trials, name, tuning)

    score = Trials._score_whole
    monkeypatch.setattr(Trials, "_score_whole", whole)
    machine = Machine({"none": (0.1, 1.0, 1.0), "small": (0.02, 1.002, 1.0), "next": (0.05, 1.001, 1.0)})
    result = go(machine)
    place, why = places(uri)
    increase = "+0.803 %" if winner == "small" else "+2.02 %"
    assert f"perplexity {increase}" in why["small"]
    places_then = {
        "small": {"none": "dropped", "small": "winner", "next": "dropped"},
        "next": {"none": "open", "small": "dropped", "next": "unproven"},
    }
    assert place == places_then[winner]
    assert winner in result.reading[0]
    tracked = runs(tracking_uri=uri).set_index("scenario")
    small, none = (tracked.loc[name] for name in ("small", "none"))
    assert small["reference_perplexity_ratio"] == pytest.approx(small["perplexity"] / none["perplexity"])


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_no_pictures")
def test_without_a_better_candidate_the_baseline_is_recommended(go, uri):
    result = go(Machine({"none": (0.1, 1.0, 1.0), "same": (0.1, 1.0, 1.0), "slow": (0.3, 1.0, 1.0)}))
    place, _ = places(uri)
    assert place == {"none": "winner", "same": "equal", "slow": "dropped"}
    assert "nothing that keeps to the limits was found to be better" in result.reading[0]
    assert "same; none is the simpler one" in result.reading[1]


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_no_pictures")
def test_limits_hold_and_without_a_bound_quality_does_not_matter(go, uri):
    go(Machine(WAYS), limits={"time_to_first_token_ms": 60.0}, most_perplexity=None)
    place, why = places(uri)
    assert place["lossy"] == "winner"
    assert "time_to_first_token_ms" in why["none"]
    assert "is over 60" in why["none"]


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_no_pictures")
def test_a_short_budget_is_kept_and_untried_candidates_are_named(go, uri):
    machine = Machine({name: (step, nll, 20.0) for name, (step, nll, _) in WAYS.items()})
    result = go(machine, seconds=70.0)
    # What measures in this process cannot be cut short: one load of 20 s may end late.
    assert machine.clock.now <= 90.0
    place, why = places(uri)
    assert set(place.values()) <= {"unproven", "equal", "dropped", "open"}
    assert result.exit_code == NOT_PROVEN
    assert "use budget=" in next(why[name] for name in place if place[name] == "unproven")


@pytest.mark.slow(6)
@pytest.mark.usefixtures("_no_pictures")
def test_an_interrupted_search_is_tracked_and_resumes(go, uri):
    machine = Machine(WAYS)
    go(machine)
    stopped = Machine(WAYS, stop_after=20)
    with pytest.raises(KeyboardInterrupt):
        go(stopped)
    tracked = runs(tracking_uri=uri)
    latest = tracked[tracked["study_id"] == tracked["study_id"].iloc[0]]
    assert set(latest["race_place"]) <= {"open", "dropped"}
    assert latest["decode_tokens_per_sec"].notna().sum() >= 3
    second = Machine(WAYS)
    result = go(second, resume=True, start=4.0)  # which differs each time
    assert result.reading[0].startswith("Run small")
    # Only what it was killed in is done twice, and what has to be warm again.
    assert second.calls <= machine.calls - stopped.stop_after + 3


@pytest.mark.slow(3)
@pytest.mark.usefixtures("_no_pictures")
def test_a_search_of_another_process_is_not_resumed(go, uri):
    refused = []

    class Twice(Machine):
        def load(self, variant):
            if not refused:
                refused.append("")
                try:
                    go(Machine(WAYS), resume=True, start=4.0)
                except UsageError as error:
                    refused.append(str(error))
            return super().load(variant)

    assert go(Twice(WAYS)).reading[0].startswith("Run small")
    assert f"process {os.getpid()} is already measuring this study" in refused[1]
    assert len(runs(kind="study", tracking_uri=uri)) == 1


def test_parts_have_each_text_once_and_similar_lengths():
    corpus = load_corpus("builtin")
    parts = parts_of(corpus)
    assert sorted(text for part in parts for text in part) == sorted(corpus.texts)
    lengths = [sum(map(len, part)) for part in parts]
    assert max(lengths) - min(lengths) <= max(map(len, corpus.texts))
    assert parts_of(replace(corpus, texts=("text",))) == [["text"]]
