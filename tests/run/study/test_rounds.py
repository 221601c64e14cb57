"""Compared variants are interleaved there and back: drift affects all alike, and no model is loaded twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure.statistics import disturbed
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.pool import Pool
from llmtrack.run.study import merge as merging
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.rounds import ONCE
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.spec.events import Log, Progress
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.task import RepeatPolicy
from tests.run.scenarios import by_name, generating, in_groups, outcomes, scoring

pytestmark = pytest.mark.usefixtures("_known_ceilings", "_real_disturbance")

POLICY = RepeatPolicy(warmup=1, min_repeats=5, min_seconds=0, max_seconds=60, target_ci=0.05)
# Seconds of a call on a quiet machine: the last is the fastest.
TRUE = {"a": 1.0, "b": 0.9, "c": 0.8}


@pytest.fixture
def _real_disturbance(monkeypatch, quiet_machine):
    monkeypatch.setattr(merging, "disturbed", disturbed)


def variant(name):
    return Variant("synthetic:tiny", device="cpu", quantization=name)


class Machine:
    """Models with known durations, on a machine that slows down with time."""

    def __init__(self, slowness=lambda now: 1.0, error=None, room=9, true=TRUE):
        self.clock = FakeClock()
        self.true = true
        self.slowness = slowness
        self.error = error or {}
        self.room = room
        self.loaded: list[str] = []
        self.calls: list[str] = []

    def load(self, variant):
        machine, name = self, variant.quantization
        self.loaded.append(name)

        class Engine(ScriptedEngine):
            def generate(self, request, on_step):
                machine.calls.append(name)
                fails = machine.error.get(name)
                if fails and machine.calls.count(name) == fails[0]:
                    raise fails[1]
                return super().generate(request, on_step)

            def close(self):
                machine.calls.append(f"-{name}")

        # The first of five tokens takes as long as any.
        step = self.true[name] / 5
        return Engine(self.clock, Script(step, step), slowness=self.slowness)

    def inline(self):
        return InlineExecutor(self.load, self.clock)

    def pool(self):
        return Pool(self.inline, is_full=lambda: False, most=self.room, fits=lambda *variants: True)


def groups(*names, repeat=POLICY, **changes):
    return [[replace(generating(name, variant(name), repeat), **changes)] for name in names or TRUE]


def in_turn(machine, *names, executor=None, **settings):
    events = []
    in_groups(executor or machine.pool(), groups(*names, **settings), events.append)
    return events


def one_after_the_other(machine):
    events = []
    for group in groups():
        run_scenarios(machine.pool(), group, events.append)
    return events


def medians(events):
    return {
        outcome.scenario.name: pytest.approx(outcome.metrics["total_latency_s"], rel=1e-9)
        for outcome in outcomes(events)
    }


def durations(events, name):
    return by_name(events)[name].samples["total_latency_s"]


def test_each_arm_is_visited_there_and_back_on_one_load():
    machine = Machine()
    events = in_turn(machine)
    assert medians(events) == TRUE
    # A warm-up before each visit but the one at the turn, where nothing ran in between; three counted calls in each.
    assert "".join(machine.calls) == "aaaa" + "bbbb" + "cccc" + "ccc" + "bbbb" + "aaaa"
    assert machine.loaded == ["a", "b", "c"]
    outcome = by_name(events)["a"]
    assert outcome.rounds == (1, 1, 1, 2, 2, 2)
    assert outcome.scenario == groups()[0][0], "asked as it was"
    assert outcome.summaries["total_latency_s"].n == 6
    assert not outcome.warnings
    assert not outcome.disturbed


def test_interleaving_cancels_a_linear_drift():
    """The machine slows by 0.4 % of its initial speed per second: a call of d seconds slows the next by 1 + 0.004 d."""
    true = {"a": 1.0, "b": 0.99, "c": 0.98}
    drift = lambda now: 1 + 0.004 * now  # noqa: E731
    a, b, c = (1 + 0.004 * seconds for seconds in true.values())
    wrong = medians(one_after_the_other(Machine(drift, true=true)))
    # A warm-up and five calls each, the median of which is the third.
    assert wrong == {"a": 1.0 * a**3, "b": 0.99 * a**6 * b**3, "c": 0.98 * a**6 * b**6 * c**3}
    assert wrong["a"].expected < wrong["b"].expected < wrong["c"].expected, "the slowest looks the fastest"
    right = medians(in_turn(Machine(drift, true=true)))
    # The median of three calls there and three back lies between the last one there and the first one back.
    assert right == {
        "a": 1.0 * (a**3 + a**5 * b**8 * c**7) / 2,
        "b": 0.99 * a**4 * (b**3 + b**5 * c**7) / 2,
        "c": 0.98 * a**4 * b**4 * (c**3 + c**4) / 2,
    }
    assert right["a"].expected > right["b"].expected > right["c"].expected
    assert right["a"].expected / right["c"].expected == pytest.approx(1.0 / 0.98, rel=1e-3)


@pytest.mark.slow(1)
@pytest.mark.parametrize("at", [0.5, 3.0, 5.5, 8.0, 10.0, 12.0, 15.0, 18.0])
def test_a_sudden_slowdown_does_not_change_the_order(at):
    events = in_turn(Machine(lambda now: 3.0 if now > at else 1.0))
    expected = {name: median.expected for name, median in medians(events).items()}
    assert expected["a"] > expected["b"] > expected["c"]


@pytest.mark.slow(1)
def test_all_arms_continue_until_the_widest_is_narrow():
    """The machine slows down between a and b: measured alone, b is steady, and as wrong as a."""
    machine = Machine(lambda now: 3.0 if now > 3.5 else 1.0)
    events = in_turn(machine)
    # As often as their 60 seconds allow.
    assert {name: len(durations(events, name)) for name in TRUE} == {"a": 22, "b": 22, "c": 24}
    assert medians(events) == {name: 3 * seconds for name, seconds in TRUE.items()}
    assert all(not outcome.disturbed for outcome in outcomes(events))
    assert by_name(events)["a"].warnings[0].startswith("disturbed at first, then repeated")


@pytest.mark.slow(1)
def test_laps_end_on_a_machine_that_stays_disturbed():
    turn = iter(range(10_000))
    events = in_turn(Machine(lambda now: 1.0 + 2.0 * (next(turn) % 2)), repeat=replace(POLICY, max_repeats=60))
    for outcome in outcomes(events):
        assert outcome.disturbed
        assert any(line.startswith("noisy:") for line in outcome.warnings)
        assert outcome.warnings[-1] == "still disturbed after more repeats"
        assert sum(outcome.samples["total_latency_s"]) <= POLICY.max_seconds


@pytest.mark.parametrize(
    ("most", "counted"),
    [
        (60.0, [6, 6, 6]),
        # A third call there would end beyond half of the time.
        (4.5, [4, 4, 4]),
        (2.5, [2, 2, 2]),
        # Two do not fit at all: one call each, as it was, and in one round.
        (1.5, [1, 1, 1]),
    ],
)
def test_the_maximum_time_holds_for_all_rounds(most, counted):
    events = in_turn(Machine(), repeat=replace(POLICY, max_seconds=most))
    assert [len(durations(events, name)) for name in TRUE] == counted
    warned = [any(line.startswith(ONCE) for line in outcome.warnings) for outcome in outcomes(events)]
    assert warned == [count == 1 for count in counted]


def test_the_minimum_time_holds_for_both_rounds():
    events = in_turn(Machine(), repeat=replace(POLICY, min_seconds=20.0))
    for name in TRUE:
        assert 20.0 <= sum(durations(events, name)) < 22.1


def test_models_that_do_not_fit_are_reloaded_for_a_single_lap():
    """On the way back, the loaded model comes first."""
    for machine in (Machine(room=1), Machine()):
        executor = machine.inline() if machine.room > 1 else None
        events = in_turn(machine, executor=executor)
        assert machine.loaded == ["a", "b", "c", "b", "a"]
        assert medians(events) == TRUE
        log = next(event.text for event in events if isinstance(event, Log))
        assert log == "  3 models (loaded for each round), measured in turn, there and back"


def test_two_of_three_stay_loaded_where_there_is_room_for_two():
    machine = Machine(room=2)
    in_turn(machine)
    assert machine.loaded == ["a", "b", "c", "a"]


def test_out_of_memory_is_retried_without_the_other_models():
    machine = Machine(error={"b": (2, RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"))})
    events = in_turn(machine)
    assert medians(events) == TRUE
    assert machine.calls.index("-a") < machine.calls.index("c"), "a was freed for b"
    assert machine.loaded == ["a", "b", "c", "a"]


def test_out_of_memory_alone_fails_and_the_others_continue():
    machine = Machine(error={"a": (1, RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"))})
    events = in_turn(machine)
    first, *others = outcomes(events)
    assert isinstance(first, Failure)
    assert (first.scenario.name, first.kind) == ("a", "out_of_memory")
    assert [outcome.scenario.name for outcome in others] == ["b", "c"]
    assert machine.calls.count("a") == 1


def test_a_failure_in_a_later_round_keeps_the_earlier_ones():
    machine = Machine(error={"a": (6, RuntimeError("a cable is loose"))})
    outcome = by_name(in_turn(machine))["a"]
    assert isinstance(outcome, Measurement)
    assert outcome.rounds == (1, 1, 1)
    assert outcome.warnings == ("measured in 1 of 2 rounds: the round after failed (error): a cable is loose",)


def interrupted(at, journal=None):
    """Return the events if a signal arrives at the given call."""
    machine, events, calls = Machine(), [], iter(range(1000))

    def slowness(now):
        if next(calls) == at:
            raise KeyboardInterrupt
        return 1.0

    machine.slowness = slowness
    with pytest.raises(KeyboardInterrupt):
        in_groups(machine.pool(), groups(), events.append, journal)
    return machine, events


@pytest.mark.parametrize(("call", "rounds"), [(3, {}), (6, {"a": 1}), (20, {"a": 1, "b": 2, "c": 2})])
def test_an_interruption_emits_all_completed_rounds(call, rounds):
    _, events = interrupted(call)
    assert {outcome.scenario.name: len(set(outcome.rounds)) for outcome in outcomes(events)} == rounds
    for outcome in outcomes(events):
        once = len(set(outcome.rounds)) == 1
        assert outcome.warnings == (("measured in 1 of 2 rounds: it was interrupted",) if once else ())


@pytest.mark.slow(1)
@pytest.mark.parametrize("tail", ["", '{"key": [2, ["x"]], "ga'], ids=["whole", "torn"])
def test_a_killed_study_resumes_at_its_round(tmp_path, tail):
    path = tmp_path / "rounds.jsonl"
    interrupted(20, Journal(path, False))
    with path.open("a") as file:
        file.write(tail)
    second, events = Machine(), []
    in_groups(second.pool(), groups(), events.append, Journal(path, True))
    assert "".join(second.calls) == "aaaa", "of the last visit nothing was kept"
    assert medians(events) == TRUE
    assert all(outcome.rounds == (1, 1, 1, 2, 2, 2) for outcome in outcomes(events))
    assert not path.exists(), "nothing is left to be resumed"
    # Without it all is measured anew.
    interrupted(20, Journal(path, False))
    third = Machine()
    in_groups(third.pool(), groups(), events.append, Journal(path, False))
    assert len(third.calls) == 23


def test_rounds_of_a_replaced_model_do_not_count(tmp_path):
    path = tmp_path / "rounds.jsonl"
    interrupted(20, Journal(path, False))
    text = path.read_text()
    path.write_text(text.replace('"tags": {', '"tags": {"weights_digest": "old"'))
    assert path.read_text() != text
    events = []
    in_groups(Machine().pool(), groups(), events.append, Journal(path, True))
    assert by_name(events)["a"].rounds == (2, 2, 2)
    assert "old" not in by_name(events)["a"].tags.values()


@pytest.mark.slow(1)
def test_quality_is_scored_after_all_timing():
    machine = Machine()
    check = QualityCheck(replace(scoring("x").task, corpus="builtin", max_length=16))
    events = in_turn(machine, quality=check)
    steps = [(event.scenario, event.step) for event in events if isinstance(event, Progress)]
    first = next(place for place, (_, step) in enumerate(steps) if step == "reading the corpus")
    assert not any("repeat" in step for _, step in steps[first:])
    for outcome in outcomes(events):
        assert outcome.metrics["total_latency_s"] == pytest.approx(TRUE[outcome.scenario.name])
        assert outcome.metrics["loss"] == pytest.approx(1.0)
        assert outcome.facts["corpus"] == "builtin"
        assert outcome.items
        assert [item.values["loss"] for item in outcome.items] == pytest.approx([1.0] * len(outcome.items))
        assert outcome.scenario.quality == check
        assert len(outcome.samples["total_latency_s"]) == 6
    assert machine.loaded == ["a", "b", "c"]


@pytest.mark.slow(1)
def test_a_text_is_scored_twice_and_both_speeds_count():
    clock, seconds = FakeClock(), {"a": [1.0, 4.0], "b": [2.0, 2.0]}

    class Engine(ScriptedEngine):
        """Takes the given seconds for each batch."""

        def __init__(self, name):
            super().__init__(clock, Script(1, 1))
            self.passes = iter(seconds[name])

        def reset_peak_memory(self):
            self.batch_s = next(self.passes)

        def score(self, input_ids, attention_mask, scored=None):
            self.clock.advance(self.batch_s)
            return super().score(input_ids, attention_mask, scored)

    load = lambda variant: Engine(variant.quantization)  # noqa: E731
    pool = Pool(lambda: InlineExecutor(load, clock), is_full=lambda: False, fits=lambda *variants: True)
    events = []
    groups_of_texts = [[scoring(name, variant(name), batch_size=None)] for name in seconds]
    in_groups(pool, groups_of_texts, events.append)
    for outcome in outcomes(events):
        tokens, batches = outcome.metrics["tokens_scored"], len(outcome.series["batch_loss"])
        spent = batches * sum(seconds[outcome.scenario.name])
        assert outcome.metrics["score_tokens_per_sec"] == pytest.approx(2 * tokens / spent)
        assert outcome.metrics["loss"] == pytest.approx(1.0)


def test_scenarios_of_one_variant_are_not_interleaved_by_rounds():
    machine, events = Machine(), []
    scenarios = [generating(f"a{number}", variant("a"), POLICY) for number in range(2)]
    in_groups(machine.pool(), [scenarios], events.append)
    assert [outcome.rounds for outcome in outcomes(events)] == [(), ()]
    assert [len(outcome.samples["total_latency_s"]) for outcome in outcomes(events)] == [5, 5]


def test_unneeded_models_are_freed_before_a_study():
    machine, events = Machine(), []
    pool = machine.pool()
    in_groups(pool, groups("a", "b"), events.append)
    in_groups(pool, groups("b"), events.append)
    assert not pool.holds(variant("a"))
    assert machine.loaded == ["a", "b"]
