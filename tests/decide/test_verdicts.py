"""Every command and report gives the same verdict on two runs, with the same ratio, interval, commands and warnings."""

from __future__ import annotations

import inspect
import itertools
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
from llmtrack.decide.differences import comparison_text
from llmtrack.decide.gate import gate
from llmtrack.decide.pareto import pareto_front
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.significance import Ratio
from llmtrack.decide.verdicts import (
    DISTURBED,
    difference_between,
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
from tests.report.artificial_runs import make_runs, repeated, run, timed

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
    return make_runs(*rows), samples


def _median(values):
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


@pytest.fixture(scope="module")
def store():
    """A store in memory, of `runs` and `samples`."""
    store: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: store["samples"])
        patch.setattr(noise_floor, "tracked_runs", lambda **filters: store["runs"])
        yield store


@pytest.mark.slow(20)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores)
def test_every_command_and_report_gives_the_same_verdict_on_two_runs(store, arms):
    store["runs"], store["samples"] = store_of(*arms)
    known = with_samples(store["runs"])
    base, *others = known
    for other in others:
        difference = difference_between(base, other, RATE)
        figures = comparison_text(RATE, difference.ratio, difference.repeated)
        baseline, candidate = Runs([base]), Runs([other])

        # compare --baseline, of these two alone and of all at once
        for candidates in (candidate, *([store["runs"]] if other is others[-1] else [])):
            comparison = compare(baseline, candidates, [RATE])
            row = comparison[comparison["run_id"] == other.run_id].iloc[0]
            assert (row["verdict"], row["words"]) == (difference.verdict, difference.words)
            assert Ratio(row["ratio"], row["ratio_low"], row["ratio_high"]) == difference.ratio

        # the study's own table, compare --study and the page in MLflow
        table = summary_table(known)
        cell = table.rows[table.run_ids.index(other.run_id)][-1]
        assert cell.startswith(f"{figures} tokens/s")
        assert ("no significant difference" in cell) == (difference.verdict == "same"), cell
        assert ("inconclusive" in cell) == (difference.verdict == "unknown"), cell

        # the takeaways, and readings
        (gain,) = (gain for gain in gains(known) if gain.run.run_id == other.run_id)
        assert gain.difference == difference
        assert figures in reading.change(base, other, RATE)

        # the gate, which breaks on a slowdown only
        (checked,) = gate(baseline, candidate, [f"{RATE} < 0%"]).checks
        assert checked.check.change == figures
        allowed = {"worse": ("broken", "inconclusive"), "better": ("kept", "inconclusive")}
        assert checked.check.outcome in allowed.get(difference.verdict, ("kept", "inconclusive")), difference

        # recommend, between the two
        chosen = recommend(Runs([base, other]), Limits())
        faster = other.metrics["tokens_per_sec"] > base.metrics["tokens_per_sec"]
        if difference.verdict in ("better", "worse", "same"):
            assert chosen.scenario == (other if faster else base).name
            assert figures in (chosen.sentence if faster else dict(chosen.ruled_out)[other.name])
        else:
            assert chosen.scenario is None
            assert difference.why in chosen.sentence or figures in chosen.sentence


@pytest.mark.slow(20)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores)
def test_the_front_follows_from_the_same_verdicts_which_are_symmetric(store, arms):
    store["runs"], store["samples"] = store_of(*arms)
    runs = with_samples(store["runs"])
    for index, (candidate, standing) in enumerate(zip(runs, pareto_front(runs, (RATE, "perplexity")), strict=True)):
        # All have one perplexity, so that speed alone decides.
        rivals = runs[:index] + runs[index + 1 :]
        against = {difference_between(candidate, rival, RATE).verdict for rival in rivals}
        assert standing.position == ("off" if "better" in against else "open" if "unknown" in against else "on")
    for first, second in itertools.product(runs, runs):
        there, back = difference_between(first, second, RATE), difference_between(second, first, RATE)
        assert back.verdict == FLIPPED.get(there.verdict, there.verdict)
        assert back.ratio.value == pytest.approx(1 / there.ratio.value)
        if first is not second:
            assert (back.ratio.low, back.ratio.high) == pytest.approx((1 / there.ratio.high, 1 / there.ratio.low))


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        # Mean 1.1, deviations 0.1 and 0.3: sd 0.2, 18 %.
        ([1.0, 1.0, 1.0, 1.4], "varied by 18%"),
        ([1.0] * 4 + [1.12] * 8, "drifted by 12%"),
        ([1.0, 1.0, 1.0, 1.0], ""),
    ],
)
def test_a_disturbance_is_summarized_from_the_warnings_about_repeats(durations, words):
    assert disturbance(findings(durations, RepeatPolicy(min_repeats=1))) == words


def test_a_disturbance_is_summarized_from_the_warning_of_a_busy_machine(monkeypatch):
    monkeypatch.setattr("llmtrack.measure.disturbances.BUSY_SHARE", 0.1)
    readings = CpuReading(0, 0, 0), CpuReading(50, 10, 100), CpuReading(50, 10, 100, stolen=35)
    ours, stolen = (busy_warning(readings[0], after) for after in readings[1:])
    assert disturbance(ours) == "others took 40% of the CPU"
    assert disturbance(stolen) == "others took 35% of the CPU"


def test_the_prefixes_of_disturbances_are_those_of_the_measuring_side():
    policy = RepeatPolicy()
    noisy = findings([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], policy)
    drifting = findings([1.0, 1.0, 1.01, 1.2, 1.2, 1.2], policy)
    for lines in (noisy, drifting):
        assert any(line.startswith(DISTURBED) for line in lines), lines
    # In tests the machine is never busy, so look up the warning.
    assert f"{DISTURBED[0]} other programs" in inspect.getsource(disturbances)
    assert is_disturbed(make_runs(timed("a", 1.0, warnings="\n".join(noisy)))[0])
    assert not is_disturbed(make_runs(timed("a", 1.0, warnings="random weights: quality is meaningless"))[0])


PARAMETERS = {
    name: set(entry["parameters"])
    for name, entry in yaml.safe_load((Path(__file__).parents[2] / "MLproject").read_text())["entry_points"].items()
}


@pytest.mark.parametrize("name", suite.NAMES)
def test_the_command_that_measures_more_has_valid_parameters(name):
    row = run("a", experiment=name, model="a folder/model,synthetic:tiny", min_repeats=6)
    if name in ("perplexity", "training"):
        row["max_new_tokens"] = None
    words = shlex.split(measure_command(make_runs(row)[0], 4))
    # In any folder: `mlflow run` needs the project's.
    assert words[:3] == ["llmtrack", "run", name]
    parameters = dict(word.split("=", 1) for word in words[words.index("-P") + 1 :: 2])
    assert set(parameters) <= PARAMETERS[name]
    assert parameters["model"] == "a folder/model,synthetic:tiny"
    assert parameters.get("min_repeats", "6") == "6", "no fewer than there were"


def test_the_command_repeats_the_requested_parameters_without_resume():
    requested = {"model": "m", "device": "cpu", "dtype": "bfloat16", "max_new_tokens": "8", "resume": "true"}
    words = measure_command(make_runs(run("a", min_repeats=5) | {"asked": json.dumps(requested)})[0], 7)
    assert words.endswith("-P model=m -P device=cpu -P dtype=bfloat16 -P max_new_tokens=8 -P min_repeats=7")
    assert "resume" not in words


def test_the_command_of_an_older_run_has_the_common_parameters():
    old = run("a", model="m", revision="r1", device_requested="cuda:1", max_new_tokens=8, backend="onnx")
    words = measure_command(make_runs(old)[0], 7)
    assert words.endswith("-P model=m -P revision=r1 -P device=cuda:1 -P max_new_tokens=8 -P min_repeats=7")
    assert "-P" not in measure_command(make_runs(run("a", device_requested="auto"))[0])


def test_the_command_raises_the_time_cap_for_its_repeats():
    slow = make_runs(run("a", total_latency_s=20.0, max_seconds=60.0))[0]
    assert measure_command(slow, 6).endswith("-P min_repeats=6 -P max_seconds=240")
    quick = make_runs(run("a", total_latency_s=1.0, max_seconds=60.0))[0]
    assert "max_seconds" not in measure_command(quick, 6)


def test_warnings_and_commands_of_many_runs_are_merged():
    runs = make_runs(*(repeated(name, 10.0, 20.0, warnings="the machine was busy") for name in "abcdefg"))
    (note, *_) = pareto_table(gather_candidates(runs), ("tokens_per_sec", "perplexity")).notes
    assert note == "read with care: all 7 runs: the machine was busy"
    command = "llmtrack run precision -P dtypes=float32 -P min_repeats={} -P max_new_tokens=4"
    assert merge_commands(
        [
            command.format(5),
            command.format(6) + " -P max_seconds=12",
            "another",
            command.format(5) + " -P max_seconds=102",
        ]
    ) == [
        "llmtrack run precision -P dtypes=float32 -P max_new_tokens=4 -P min_repeats=6 -P max_seconds=102",
        "another",
    ]


@pytest.mark.parametrize(
    ("beaten_by", "changes", "verdict"),
    [
        ("fast", {}, "worse"),
        ("other, fast", {}, "worse"),
        ("other", {}, "unknown"),
        ("", {}, "unknown"),
        ("fast", {"tuned_for": "decode_tokens_per_sec"}, "unknown"),
        ("fast", {"study_id": "tune-2"}, "unknown"),
        # The few tracked repeats show the opposite.
        ("fast", {"tokens_per_sec": 40.0}, "unknown"),
    ],
)
def test_what_a_search_eliminated_is_worse_with_few_repeats(beaten_by, changes, verdict):
    found = {"tuned_for": "tokens_per_sec"}
    rows = repeated("fast", 30.0, n=3, **found), repeated("slow", 28.0, n=3, **found, race_beaten_by=beaten_by)
    fast, slow = make_runs(rows[0], rows[1] | changes)
    difference = difference_between(fast, slow, "tokens_per_sec")
    assert difference.verdict == verdict
    opposite = {"worse": "better"}.get(verdict, verdict)
    assert difference_between(slow, fast, "tokens_per_sec").verdict == opposite
    if verdict == "worse":
        assert difference.words == "slower: 0.93x (0.91 to 0.95), as the search found"
        assert difference.repeats_needed == 0
