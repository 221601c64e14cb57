"""One verdict: whoever is asked about two runs gives the same one, with the same ratio and the same interval."""

from __future__ import annotations

import inspect
import json
import random
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import suite
from llmtrack.decide import noise_floor, verdicts
from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.compare import compare
from llmtrack.decide.differences import Ratio, comparison_text
from llmtrack.decide.gate import gate
from llmtrack.decide.pareto import pareto_front
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.verdicts import (
    DISTURBED,
    differences_from,
    disturbance,
    is_disturbed,
    measure_command,
    merge_commands,
    with_samples,
)
from llmtrack.measure import disturbances
from llmtrack.measure.disturbances import CpuReading, busy_warning
from llmtrack.measure.statistics import findings
from llmtrack.report.pareto import pareto_table
from llmtrack.report.sentences import reading
from llmtrack.report.sentences.takeaways import gains
from llmtrack.report.tables.summary import summary_table
from llmtrack.spec.task import RepeatPolicy
from llmtrack.tracked.runs import Runs
from tests.decide.tracked_runs import repeated, timed
from tests.report.frames import made, run

RATE = "tokens_per_sec"


FLIPPED = {"better": "worse", "worse": "better"}


# Medians far apart and near, repeats from too few to enough, noise from none to much.
arms = st.tuples(st.sampled_from([9.0, 9.5, 10.0, 10.2, 20.0]), st.integers(1, 9), st.sampled_from([0.0, 0.01, 0.1]))


stores = st.tuples(st.lists(arms, min_size=2, max_size=5), st.integers(0, 10**6))


def store_of(arms, seed):
    """Return the runs of a study, the first one its baseline, and the samples that are tracked of each."""
    generator = random.Random(seed)
    samples = {
        f"id-arm{number}": {RATE: tuple(rate * generator.lognormvariate(0, noise) for _ in range(n))}
        for number, (rate, n, noise) in enumerate(arms)
    }
    rows = [
        run(
            f"arm{number}",
            workload_id="w",
            environment_id="e",
            baseline=number == 0,
            quantization=f"q{number}",
            perplexity=20.0,
            peak_memory_mib=100.0,
            tokens_per_sec=1 / _median([1 / value for value in samples[f"id-arm{number}"][RATE]]),
        )
        for number in range(len(arms))
    ]
    return made(*rows), samples


def _median(values):
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


@pytest.fixture(scope="module")
def kept():
    """A store in memory; what it holds is put there by `put`."""
    held: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: held["samples"])
        patch.setattr(noise_floor, "tracked_runs", lambda **asked: held["runs"])
        yield held


@pytest.mark.slow(20)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores)
def test_all_that_are_asked_say_the_same_of_two_runs(kept, arms):
    kept["runs"], kept["samples"] = store_of(*arms)
    known = with_samples(kept["runs"])
    rows = known
    base, *others = rows
    for other in others:
        (told,) = differences_from(base, [other], RATE)
        figures = comparison_text(RATE, told.ratio, told.repeated)
        one, its = (Runs([each]) for each in (base, other))

        # compare --baseline, of these two alone and of all at once
        for candidates in (its, *([kept["runs"]] if other is others[-1] else [])):
            found = compare(one, candidates, [RATE])
            row = found[found["run_id"] == other.run_id].iloc[0]
            assert (row["verdict"], row["words"]) == (told.verdict, told.words)
            assert Ratio(row["ratio"], row["ratio_low"], row["ratio_high"]) == told.ratio

        # the study's own table, compare --study and the page in MLflow
        table = summary_table(known)
        cell = table.rows[table.run_ids.index(other.run_id)][-1]
        assert cell.startswith(f"{figures} tokens/s")
        assert ("no significant difference" in cell) == (told.verdict == "same"), cell
        assert ("inconclusive" in cell) == (told.verdict == "unknown"), cell

        # the takeaways, and readings
        (gain,) = (each for each in gains(known) if each.run.run_id == other.run_id)
        assert gain.difference == told
        assert figures in reading.change(base, other, RATE)

        # the gate: it breaks on no slowdown that is none, and never passes one off as a gain
        (check,) = gate(one, its, [f"{RATE} < 0%"]).checks
        assert check.check.change == figures
        allowed = {"worse": ("broken", "inconclusive"), "better": ("kept", "inconclusive")}
        assert check.check.outcome in allowed.get(told.verdict, ("kept", "inconclusive")), told

        # recommend, asked to choose between the two
        chosen = recommend(Runs([base, other]), Limits())
        faster = other.metrics["tokens_per_sec"] > base.metrics["tokens_per_sec"]
        if told.verdict in ("better", "worse", "same"):
            assert chosen.scenario == (other if faster else base).name
            assert figures in (chosen.sentence if faster else dict(chosen.ruled_out)[other.name])
        else:
            assert chosen.scenario is None
            assert told.why in chosen.sentence or figures in chosen.sentence


@pytest.mark.slow(20)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores)
def test_the_front_is_of_the_same_verdicts_in_table_and_picture(kept, arms):
    kept["runs"], kept["samples"] = store_of(*arms)
    known = with_samples(kept["runs"])
    rows = known
    for index, (own, standing) in enumerate(zip(rows, pareto_front(known, (RATE, "perplexity")), strict=True)):
        # All have one perplexity, so that speed alone decides.
        told = {each.verdict for each in differences_from(own, rows[:index] + rows[index + 1 :], RATE)}
        place = "off" if "better" in told else "open" if "unknown" in told else "on"
        assert standing.position == place
    for one in rows:
        for other in rows:
            (there,), (back,) = differences_from(one, [other], RATE), differences_from(other, [one], RATE)
            assert back.verdict == FLIPPED.get(there.verdict, there.verdict)
            assert back.ratio.value == pytest.approx(1 / there.ratio.value)
            if one is not other:
                assert (back.ratio.low, back.ratio.high) == pytest.approx((1 / there.ratio.high, 1 / there.ratio.low))


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        # Mean 1.1, deviations 0.1 and 0.3: sd 0.2, 18 %.
        ([1.0, 1.0, 1.0, 1.4], "varied by 18 %"),
        ([1.0] * 4 + [1.12] * 8, "drifted by 12 %"),
        ([1.0, 1.0, 1.0, 1.0], ""),
    ],
)
def test_the_words_are_those_of_what_the_measuring_side_says(durations, words):
    assert disturbance(findings(durations, RepeatPolicy(min_repeats=1))) == words


def test_so_are_those_of_a_busy_machine(monkeypatch):
    monkeypatch.setattr("llmtrack.measure.disturbances.BUSY_SHARE", 0.1)
    readings = CpuReading(0, 0, 0), CpuReading(50, 10, 100), CpuReading(50, 10, 100, stolen=35)
    ours, stolen = (busy_warning(readings[0], after) for after in readings[1:])
    assert disturbance(ours) == "others took 40 % of the CPU"
    assert disturbance(stolen) == "others took 35 % of the CPU"


def test_what_says_disturbed_is_what_the_measuring_side_says():
    policy = RepeatPolicy()
    noisy = findings([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], policy)
    drifting = findings([1.0, 1.0, 1.01, 1.2, 1.2, 1.2], policy)
    for lines in (noisy, drifting):
        assert any(line.startswith(DISTURBED) for line in lines), lines
    # Tests do not notice how busy their machine is, so that what would be said is looked up.
    assert f"{DISTURBED[0]} other programs" in inspect.getsource(disturbances)
    assert is_disturbed(made(timed("a", 1.0, warnings="\n".join(noisy)))[0])
    assert not is_disturbed(made(timed("a", 1.0, warnings="random weights: quality is meaningless"))[0])


PARAMETERS = {
    name: set(entry["parameters"])
    for name, entry in yaml.safe_load((Path(__file__).parents[2] / "MLproject").read_text())["entry_points"].items()
}


@pytest.mark.parametrize("name", suite.NAMES)
def test_the_command_that_measures_more_can_be_pasted(name):
    row = run("a", experiment=name, model="a folder/model,synthetic:tiny", min_repeats=6)
    if name in ("perplexity", "training"):
        row["max_new_tokens"] = None
    words = shlex.split(measure_command(made(row)[0], 4))
    assert words[:5] == ["mlflow", "run", ".", "-e", name]
    given = dict(each.split("=", 1) for each in words[words.index("-P") + 1 :: 2])
    assert set(given) <= PARAMETERS[name]
    assert given["model"] == "a folder/model,synthetic:tiny"
    assert given.get("min_repeats", "6") == "6", "no fewer than there were"


def test_the_command_asks_for_all_that_was_asked_and_not_to_take_over_what_is_there():
    asked = {"model": "m", "device": "cpu", "dtype": "bfloat16", "max_new_tokens": "8", "resume": "true"}
    words = measure_command(made(run("a", min_repeats=5) | {"asked": json.dumps(asked)})[0], 7)
    assert words.endswith("-P model=m -P device=cpu -P dtype=bfloat16 -P max_new_tokens=8 -P min_repeats=7")
    assert "resume" not in words


def test_of_an_older_run_the_command_asks_for_what_every_experiment_takes():
    old = run("a", model="m", revision="r1", device_requested="cuda:1", max_new_tokens=8, backend="onnx")
    words = measure_command(made(old)[0], 7)
    assert words.endswith("-P model=m -P revision=r1 -P device=cuda:1 -P max_new_tokens=8 -P min_repeats=7")
    assert "-P" not in measure_command(made(run("a", device_requested="auto"))[0])


def test_the_command_makes_room_for_the_repeats_that_it_asks_for():
    slow = made(run("a", total_latency_s=20.0, max_seconds=60.0))[0]
    assert measure_command(slow, 6).endswith("-P min_repeats=6 -P max_seconds=240")
    quick = made(run("a", total_latency_s=1.0, max_seconds=60.0))[0]
    assert "max_seconds" not in measure_command(quick, 6)


def test_a_warning_of_many_and_a_command_that_would_tell_of_many_are_each_said_once():
    runs = made(*(repeated(name, 10.0, 20.0, warnings="the machine was busy") for name in "abcdefg"))
    (said, *_) = pareto_table(gather_candidates(runs), ("tokens_per_sec", "perplexity")).notes
    assert said == "read with care: all 7 runs: the machine was busy"
    command = "mlflow run . -e precision -P dtypes=float32 -P min_repeats={} -P max_new_tokens=4"
    assert merge_commands(
        [
            command.format(5),
            command.format(6) + " -P max_seconds=12",
            "another",
            command.format(5) + " -P max_seconds=102",
        ]
    ) == [
        "mlflow run . -e precision -P dtypes=float32 -P max_new_tokens=4 -P min_repeats=6 -P max_seconds=102",
        "another",
    ]
