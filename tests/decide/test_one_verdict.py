"""One verdict: whoever is asked about two runs gives the same one, with the same ratio and the same interval."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmtrack.decide import noise_floor, verdicts
from llmtrack.decide.comparing import compare
from llmtrack.decide.differences import Ratio, change_text, comparison_text, ratio_of_medians, ratio_text
from llmtrack.decide.gate import gate
from llmtrack.decide.noise_floor import comparisons, in_context
from llmtrack.decide.pareto import pareto_front
from llmtrack.decide.recommending import Limits, recommend
from llmtrack.decide.verdicts import tell, with_samples
from llmtrack.report.pareto import pareto_table
from llmtrack.report.sentences import reading
from llmtrack.report.sentences.takeaways import gains
from llmtrack.report.tables.summary import summary_table
from llmtrack.tracked.runs import Runs
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
        (told,) = tell(base, [other], RATE)
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
        assert gain.found == told
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
        told = {each.verdict for each in tell(own, rows[:index] + rows[index + 1 :], RATE)}
        place = "off" if "better" in told else "open" if "unknown" in told else "on"
        assert standing.place == place
    for one in rows:
        for other in rows:
            (there,), (back,) = tell(one, [other], RATE), tell(other, [one], RATE)
            assert back.verdict == FLIPPED.get(there.verdict, there.verdict)
            assert back.ratio.value == pytest.approx(1 / there.ratio.value)
            if one is not other:
                assert (back.ratio.low, back.ratio.high) == pytest.approx((1 / there.ratio.high, 1 / there.ratio.low))


@pytest.mark.slow(1)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_the_interval_of_the_inverse_is_the_inverse_of_the_interval(one, other):
    there, back = ratio_of_medians(one, other), ratio_of_medians(other, one)
    if one != other:
        assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    assert there.low <= there.high


def test_a_comparison_is_one_of_those_of_its_study_whatever_else_is_asked():
    names = ("a", "b", "c", "d")
    rows = [run(name, workload_id="w") for name in names] + [run("long", workload_id="x")]
    failed = run("e", workload_id="w", status="FAILED")
    other = [run(name, workload_id="w", study_id="precision-2", run_id=f"2-{name}") for name in ("a", "b")]
    known = in_context(made(*rows, failed, *other))
    a, b, *_, long, _, a2, b2 = known
    assert comparisons(a, b) == comparisons(b, a) == 3
    assert comparisons(a, long) == 4, "other work: one of all in the study"
    assert comparisons(a2, b2) == 1
    assert comparisons(a, a2) == 4, "each of the larger study with one of the other"
    assert comparisons(*made(*rows[:2])) == 1


def test_what_a_search_measured_afresh_is_one_of_its_proofs_whatever_else_it_tried():
    rows = [run(name, workload_id="w", race_proofs=2 if name in "ab" else None) for name in ("a", "b", "c", "d", "e")]
    a, b, c, *_ = in_context(made(*rows))
    assert comparisons(a, b) == comparisons(b, a) == 2
    assert comparisons(a, c) == 4, "a sample of the search is one of all that it tried"
    elsewhere = in_context(made(*rows, run("z", workload_id="w", study_id="tune-2", run_id="z", race_proofs=1)))
    assert comparisons(elsewhere[0], elsewhere[-1]) == 5


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(5.812, 4.42, 7.38), "5.8x (4.4 to 7.4)"),
        (Ratio(1.123, 1.081, 1.153), "1.12x (1.08 to 1.15)"),
        (Ratio(2.06, 1.98, 2.2), "2.06x (1.98 to 2.20)"),
        (Ratio(0.0513, 0.0491, 0.0622), "0.051x (0.049 to 0.062)"),
        (Ratio(1606.4, 1580.2, 1633.0), "1,606x (1,580 to 1,633)"),
        (35.21, "35.2x"),
        (0.3, "0.30x"),
        (0.0, "0.00x"),
    ],
)
def test_how_a_ratio_is_written(ratio, text):
    assert ratio_text(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.0052, 1.003, 1.008), "+0.52 % (0.3 to 0.8)"),
        (Ratio(0.9948, 0.991, 1.002), "-0.52 % (-0.9 to 0.2)"),
        (Ratio(1.00521, 1.0051, 1.0053), "+0.521 % (0.51 to 0.53)"),
        (1.2, "+20 %"),
        (17.0, "+1,600 %"),
        (1.0, "+0 %"),
    ],
)
def test_how_a_difference_of_quality_is_written(ratio, text):
    assert change_text(ratio) == text


# A number before an `x` that says how many times, or a signed percentage, made on the spot.
OWN_FORMAT = re.compile(r"""\.\d[fg]\}x\b|:\+[.,\d]*[fg]\} ?%|:\+\.\d%\}""")
# What is no comparison of runs: the sizes of what a limit says, and figures within one run.
ELSEWHERE = {
    "llmtrack/decide/differences.py": "writes them",
    "llmtrack/decide/gate.py": "says the limit as it was given",
    "llmtrack/measure/statistics.py": "measures, and may import nothing of what decides",
    "llmtrack/quality/metrics.py": "measures, and may import nothing of what decides",
    "llmtrack/report/sentences/outliers.py": "multiples of a median over all prompts, which is no run",
}


def test_nobody_else_writes_ratios_and_differences():
    top = Path(__file__).parents[2]
    found = {
        f"{path.relative_to(top)}: {line.strip()}"
        for folder in ("llmtrack", "experiments")
        for path in (top / folder).rglob("*.py")
        if str(path.relative_to(top)) not in ELSEWHERE
        for line in path.read_text().splitlines()
        if OWN_FORMAT.search(line)
    }
    assert not found, "use llmtrack.decide.differences"


def test_the_front_in_the_table_has_the_places_of_the_picture():
    rows = [
        run(
            f"a{n}",
            workload_id="w",
            environment_id="e",
            tokens_per_sec=n + 1.0,
            perplexity=20.0,
            quantization=f"q{n}",
        )
        for n in range(3)
    ]
    from llmtrack.decide.candidates import gather_points

    points = gather_points(made(*rows))
    table = pareto_table(points, (RATE, "perplexity"))
    places = [each.why for each in pareto_front(points.runs, (RATE, "perplexity"))]
    assert sorted(row[-1] for row in table.rows) == sorted(places)
