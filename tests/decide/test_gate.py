"""The gate on runs that were measured: it passes on noise, fails on a real slowdown, and never passes unchecked."""

from __future__ import annotations

import json
import math
import time
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.gate import Rule, check_samples, check_values, decide_checks, gate, parse_rule
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.tracking.read.lookup import set_alias
from tests.decide.scripted import track
from tests.report.artificial_runs import make_runs, repeated, run
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")

SLOWER = Rule("tokens_per_sec", True, -0.05)
TIMES = [1.0, 1.002, 1.004, 0.998, 0.996, 1.001, 0.999, 1.003]


def rates(slower: float = 1.0) -> list[float]:
    return [1 / (slower * time) for time in TIMES]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tokens_per_sec < -5%", SLOWER),
        (" perplexity>+1 % ", Rule("perplexity", False, 0.01)),
        ("peak_memory_mib > 2.5%", Rule("peak_memory_mib", False, 0.025)),
    ],
)
def test_rules_are_parsed(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens_per_sec < -5", "a change in percent"),
        ("tokens_per_sec -5%", "invalid rule"),
        ("token_per_sec < -5%", "did you mean tokens_per_sec"),
        ("tokens_per_sec < -100%", "nothing falls by 100 % or more"),
        ("tokens_per_sec < -500%", "nothing falls by 100 % or more"),
    ],
)
def test_invalid_rules(text, message):
    with pytest.raises(UsageError, match=message):
        parse_rule(text)


@pytest.mark.parametrize(
    ("slower", "outcome"),
    [(1.0, "kept"), (1.04, "kept"), (1.0526, "inconclusive"), (1.08, "broken"), (0.5, "kept")],
)
def test_a_change_is_tested_against_the_limit_not_zero(slower, outcome):
    # 5 % fewer tokens/s are times longer by 5.3 %.
    (result,) = decide_checks([check_samples(SLOWER, rates(), rates(slower))])
    assert result.outcome == outcome, result


def test_one_sample_each_shows_a_ratio_and_no_interval():
    assert check_samples(SLOWER, [10.0], [9.0]).change == "0.90x"
    assert check_samples(SLOWER, [10.0], [9.0, 9.0]).change == "0.90x (0.90 to 0.90)"


def test_three_repeats_cannot_break_a_gate():
    (result,) = decide_checks([check_samples(SLOWER, [10.0, 10.1, 10.2], [5.0, 5.1, 5.2])])
    assert (result.outcome, result.why) == (
        "inconclusive",
        "too few repeats, 3 against 3: measure at least 4 of each",
    )


def test_more_rules_need_more_repeats():
    alone = check_samples(SLOWER, rates()[:5], rates(1.2)[:5])
    assert decide_checks([alone])[0].outcome == "broken"
    # 13 x 1/252 is above 0.05, with six repeats 13 x 1/924 is not.
    many = decide_checks([alone] * 13)
    assert {check.outcome for check in many} == {"inconclusive"}
    assert "among 13 comparisons, 5 against 5: measure at least 6 of each" in many[0].why


@pytest.mark.parametrize(
    ("rule", "baseline", "candidate", "outcome", "why"),
    [
        ("perplexity > +1%", 20.0, 20.3, "broken", "a single value is conclusive (tolerance 0.1 %)"),
        ("perplexity > +1%", 20.0, 20.1, "kept", "a single value is conclusive (tolerance 0.1 %)"),
        ("perplexity > 0%", 20.0, 20.01, "kept", "within the tolerance of 0.1 %"),
        ("model_size_mib > 0%", 100.0, 100.1, "broken", "a single value is conclusive (tolerance 0 %)"),
        ("load_time_s > 10%", 1.0, 2.0, "inconclusive", "one value each: noise unknown"),
        ("pad_share > 10%", 0.0, 2.0, "inconclusive", "the baseline is 0: no ratio"),
    ],
)
def test_values_without_repeats(rule, baseline, candidate, outcome, why):
    result = check_values(parse_rule(rule), baseline, candidate)
    assert (result.outcome, result.why) == (outcome, why)
    assert decide_checks([result]) == [result]


class SleepyEngine(ScriptedEngine):
    """Really sleeps instead of moving a clock."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__(FakeClock(), Script(sleep_s, sleep_s))

    def generate(self, request, on_step):
        before = self.clock.now
        done = super().generate(request, on_step)
        time.sleep(self.clock.now - before)
        return done


def measure_asleep(tracker, sleep_s: float) -> str:
    executor = InlineExecutor(lambda variant: SleepyEngine(sleep_s), time.perf_counter)
    return track(tracker, executor, (4,)).study.study_id


def run_gate(uri, *arguments):
    return CliRunner().invoke(main, ["gate", "--tracking-uri", uri, *arguments])


@pytest.mark.slow(4)
def test_a_gate_passes_on_the_same_sleep_and_fails_on_a_longer_one(tracker, uri, tmp_path):
    base, same, slow = (measure_asleep(tracker, sleep_s) for sleep_s in (0.008, 0.008, 0.02))
    rules = ["--fail-if", "total_latency_s > +60%", "--fail-if", "peak_memory_mib > +5%"]
    passed = run_gate(uri, "--baseline", f"study:{base}", "--candidate", f"study:{same}", *rules)
    assert passed.exit_code == 0, passed.output
    assert passed.output.endswith("gate passed: 2 kept\n")
    junit = tmp_path / "out" / "gate.xml"
    failed = run_gate(uri, "--baseline", f"study:{base}", "--candidate", f"study:{slow}", *rules, "--junit", str(junit))
    assert failed.exit_code == 3, failed.output
    assert failed.output.endswith("gate failed: 1 broken, 1 kept\n")
    suite = ElementTree.parse(junit).getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "skipped": "0",
    }
    (broken,) = suite.findall("testcase/failure")
    assert broken.get("message").startswith("broken: 2.")
    assert suite.find("testcase").get("name") == "not total_latency_s > +60%"


@pytest.fixture
def studies(measured):
    return measured((1, 1.0), (2, 1.2))


@pytest.mark.slow(9)
def test_formats_and_aliases(studies, uri):
    base = studies[0]
    set_alias("production", base.run_id, uri)
    arguments = [
        "--baseline",
        "alias:production",
        "--candidate",
        "latest",
        "--fail-if",
        "tokens_per_sec < -5%",
    ]
    rules = [*arguments, "--fail-if", "model_size_mib > 1%", "--fail-if", "total_latency_s > 500%"]
    assert run_gate(uri, *rules, "--junit", "gate.xml").exit_code == 3
    suite = ElementTree.parse("gate.xml").getroot()
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["6", "2", "0"]
    result = run_gate(uri, *arguments, "--format", "json")
    assert result.exit_code == 3
    rows = json.loads(result.stdout)
    assert {row["scenario"]: row["verdict"] for row in rows} == {"prompt_4": "broken", "prompt_8": "broken"}
    assert result.stderr == "gate failed: 2 broken\n"
    for style, part in (
        ("markdown", "| fail if |"),
        ("html", "<td"),
        ("latex", r"\toprule"),
        ("csv", "fail if,"),
    ):
        assert part in run_gate(uri, *arguments, "--format", style).stdout, style


@pytest.mark.slow(1)
def test_a_failed_candidate_breaks_the_gate_and_a_missing_metric_is_not_passed(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    base = tracker.log(study, measurement("p64"))
    failed = tracker.log(study, failure(scenario=scenario("p64")))
    result = gate(base, failed, ["tokens_per_sec < -5%"], tracking_uri=uri)
    assert result.exit_code == 3
    assert result.checks[0].check.why == "failed: out of memory: needs 9 GiB"
    other = tracker.log(study, measurement("p64", metrics={"load_time_s": 2.0, "total_latency_s": 1.5}))
    # A gate that checks nothing must not pass.
    lost = gate(base, other, ["tokens_per_sec < -5%"], tracking_uri=uri)
    assert (lost.exit_code, lost.checks[0].check.why) == (2, "the candidate has no tokens_per_sec")


SPEED = "tokens_per_sec < -5%"


FIGURES = {"no": {}, "a": {"tokens_per_sec": 10.0}, "not a number": {"tokens_per_sec": math.nan}}
OUTCOMES = {
    f"{side}: {figure} figure": measurement("p64", metrics={"total_latency_s": 1.5, **metrics}, summaries={})
    for side in ("baseline", "candidate")
    for figure, metrics in FIGURES.items()
}
DOUBTS = ("the machine was busy: 82%", "noisy: 134%")
OUTCOMES |= {
    f"{name}{suffix}": measurement(warnings=warnings)
    for name, warnings in (("quiet", ()), ("doubted", DOUBTS))
    for suffix in ("", " again", " elsewhere")
}


def track_all(tracker):
    """Track each outcome in a study of its own."""
    return {
        name: tracker.log(
            tracker.start_study("e", "q", {}, ENVIRONMENT | {"threads": "8" if "elsewhere" in name else "2"}),
            outcome,
        )
        for name, outcome in OUTCOMES.items()
    }


@pytest.fixture
def tracked(filled_once):
    """Id of the run of each outcome."""
    return filled_once("to-gate", track_all)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("baseline", "candidate"), [("a", "no"), ("no", "a"), ("a", "not a number"), ("not a number", "a")]
)
def test_a_value_missing_on_one_side_is_exit_2_unless_accepted(tracked, uri, baseline, candidate):
    ids = [tracked[f"{side}: {figure} figure"] for side, figure in (("baseline", baseline), ("candidate", candidate))]
    arguments = ["--baseline", ids[0], "--candidate", ids[1], "--fail-if", SPEED]
    result = run_gate(uri, *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: gate not passed")
    assert "has no tokens_per_sec: measure it, or accept it by --allow-missing" in line
    accepted = run_gate(uri, *arguments, "--allow-missing", "--junit", "gate.xml")
    assert (accepted.exit_code, accepted.stderr) == (0, "")
    assert accepted.stdout.endswith("gate passed: 1 missing\n")
    assert ElementTree.parse("gate.xml").getroot().get("skipped") == "1"


CONTROLS = "".join(map(chr, (*range(1, 9), 11, 12, *range(14, 32), 127, 0x85, 0xFFFE))) + "]]>&<\x1b[31m"


@pytest.mark.slow(1)
def test_control_characters_leave_the_junit_file_readable(tracker, uri):
    """In a scenario's name, a reason and a warning."""
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    name = f"p{CONTROLS}64"
    base = tracker.log(study, measurement(name, warnings=(f"noisy {CONTROLS}",)))
    failed = tracker.log(study, failure(scenario=scenario(name), reason=f"it said {CONTROLS}"))
    arguments = ["--baseline", base, "--candidate", failed, "--fail-if", "tokens_per_sec < -5%"]
    assert run_gate(uri, *arguments, "--junit", "gate.xml").exit_code == 3
    suite = ElementTree.parse("gate.xml").getroot()
    texts = [text for element in suite.iter() for text in (element.text or "", *element.attrib.values())]
    assert not {character for text in texts for character in text} & set(map(chr, range(32))) - set("\n\t")
    assert suite.find("testcase").get("classname").startswith("e.p")


@pytest.mark.slow(1)
def test_an_inconclusive_gate_says_so_last_and_strict_fails(tracked, uri):
    base, other = tracked["quiet"], tracked["quiet again"]
    arguments = ["--baseline", base, "--candidate", other, "--fail-if", "total_latency_s > 5%"]
    result = run_gate(uri, *arguments)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        "gate passed: 1 inconclusive; measure more repeats (--strict treats this as a failure)"
    )
    assert run_gate(uri, *arguments, "--strict").exit_code == 3


@pytest.mark.slow(1)
def test_the_warnings_of_both_runs_are_listed(tracked, uri):
    base, other = tracked["doubted"], tracked["doubted again"]
    arguments = ["--baseline", base, "--candidate", other, "--fail-if", "total_latency_s > 5%"]
    result = run_gate(uri, *arguments, "--junit", "gate.xml")
    for side in ("baseline", "candidate"):
        for warning in DOUBTS:
            assert f"read with care: p64 ({side}): {warning}" in result.stdout
    assert "82%" in ElementTree.parse("gate.xml").getroot().findtext("system-out")
    assert "82%" in run_gate(uri, *arguments, "--format", "json").stderr


@pytest.mark.slow(1)
def test_an_incomparable_rule_hides_no_other_and_the_worst_code_wins(tracker, uri):
    metrics = {"total_latency_s": 1.5, "tokens_per_sec": 10.0, "model_size_mib": 100.0}
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    base = tracker.log(study, measurement("p64", metrics=metrics))
    elsewhere = tracker.start_study("e", "q", {}, {**ENVIRONMENT, "threads": "8"})
    same = tracker.log(elsewhere, measurement("p64", metrics=metrics))
    larger = tracker.log(elsewhere, measurement("p64", metrics=metrics | {"model_size_mib": 200.0}))
    rules = [
        "--fail-if",
        "tokens_per_sec < -5%",
        "--fail-if",
        "model_size_mib > 1%",
        "--fail-if",
        "loss > 1%",
    ]
    result = run_gate(uri, "--baseline", base, "--candidate", same, *rules)
    assert result.exit_code == 2
    assert "1 kept" in result.stderr
    assert "'tokens_per_sec < -5%' checks nothing, the runs are not comparable" in result.stderr
    assert "'loss > +1%' checks nothing: no run has loss" in result.stderr
    worst = run_gate(uri, "--baseline", base, "--candidate", larger, *rules)
    assert worst.exit_code == 3
    assert "1 broken" in worst.stdout
    assert "'loss > +1%' checks nothing" in worst.stdout
    both = run_gate(uri, "--baseline", base, "--candidate", same, "--fail-if", "x < 1", "--fail-if", "y < 1")
    assert both.exit_code == 2
    assert all(rule in both.stderr for rule in ("'x < 1'", "'y < 1'"))


@pytest.mark.parametrize("state", ["RUNNING", "KILLED", "SCHEDULED"])
def test_an_unfinished_candidate_does_not_pass(uri, state):
    row = run("p", tokens_per_sec=10.0, experiment="e", model="m", status=state)
    result = gate(
        make_runs({**row, "status": "FINISHED", "run_id": "0" * 32}), make_runs(row), [SPEED], tracking_uri=uri
    )
    assert result.exit_code == 2
    assert result.checks[0].check.outcome == "missing"


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("rule", "candidate", "message"),
    [
        ("perplexity > 1%", "quiet again", "checks nothing: no run has perplexity"),
        ("total_latency_s > 5%", "quiet elsewhere", "checks nothing.*threads: 2 against 8.*nevertheless"),
        ("total_latency_s", "quiet again", "invalid rule"),
    ],
)
def test_a_gate_that_checks_nothing_is_refused(tracked, uri, rule, candidate, message):
    ids = tracked["quiet"], tracked[candidate]
    with pytest.raises(UsageError, match=message):
        gate(*ids, [rule], tracking_uri=uri)
    result = run_gate(uri, "--baseline", ids[0], "--candidate", ids[1], "--fail-if", rule)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow(1)
def test_scenarios_on_one_side_are_named(tracker, uri):
    baseline, candidate = (tracker.start_study("e", "q", {}, ENVIRONMENT) for _ in range(2))
    for study, names in ((baseline, ("a", "b")), (candidate, ("b", "c"))):
        for name in names:
            tracker.log(study, measurement(name, warnings=()))
    result = gate(
        f"study:{baseline.study_id}", f"study:{candidate.study_id}", ["total_latency_s > 5%"], tracking_uri=uri
    )
    assert result.notes == ("c is not in the baseline: not checked", "a is only in the baseline: not checked")


@pytest.mark.slow(1)
@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_is_missing(side, value):
    figures = {"baseline": 20.0, "candidate": 20.0, side: value}
    runs = [make_runs(run("a", run_id=name, perplexity=value)) for name, value in figures.items()]
    result = gate(*runs, ["perplexity > +1%"])
    assert (result.exit_code, [checked.check.outcome for checked in result.checks]) == (2, ["missing"])


def precision(side, same_as="float32", **float16):
    """A study of two precisions, the second of which the machine does not have."""
    ids = {"study_id": side, "environment_id": "e1", "workload_id": "w1"}
    rows = [
        run("float32", run_id=f"{side}-32", perplexity=20.0, **ids),
        run(
            "float16",
            run_id=f"{side}-16",
            outcome="same_as",
            same_as=same_as,
            reason="no float16 here",
            **ids,
        ),
    ]
    rows[1] |= float16
    return make_runs(*rows)


@pytest.mark.parametrize("single", [False, True])
def test_a_scenario_same_as_another_is_checked_as_that_one(single):
    baseline, candidate = precision("a"), precision("b")
    result = gate(baseline[:1] if single else baseline, candidate, ["perplexity > +1%"])
    assert result.exit_code == 0
    assert [checked.check.outcome for checked in result.checks] == ["kept"]
    assert "float16 is the same as float32: no float16 here" in result.notes


@pytest.mark.slow(1)
def test_a_scenario_now_same_as_another_has_the_values_of_that_one():
    measured = {"outcome": "finished", "same_as": None, "perplexity": 15.0}
    for sides, outcome in (
        ((precision("a", **measured), precision("b")), "broken"),
        ((precision("a"), precision("b", **measured)), "kept"),
    ):
        result = gate(*sides, ["perplexity > +1%"])
        assert [checked.check.outcome for checked in result.checks] == ["kept", outcome]


def test_a_scenario_same_as_an_absent_one_is_missing():
    measured = {"outcome": "finished", "same_as": None, "perplexity": 15.0}
    result = gate(precision("a", **measured), precision("b", same_as="bfloat16"), ["perplexity > +1%"])
    assert (result.exit_code, [checked.check.outcome for checked in result.checks]) == (2, ["kept", "missing"])


def without_samples(name, speed, **values):
    """A run of 8 repeats whose raw samples cannot be read: 1 % to both sides of its median are tracked."""
    return repeated(name, speed, run_id=f"id-{speed}", study_id=f"precision-{speed}", **values)


@pytest.mark.parametrize(
    ("speed", "outcome", "why"),
    [
        (2.5, "broken", "beyond the limit (by the tracked intervals)"),
        (9.9, "kept", "within the limit (by the tracked intervals)"),
        (9.5, "inconclusive", "the tracked intervals include the limit: measure more repeats"),
    ],
)
@pytest.mark.usefixtures("uri")
def test_without_readable_samples_the_tracked_intervals_decide(speed, outcome, why):
    result = gate(
        make_runs(without_samples("a", 10.0)), make_runs(without_samples("a", speed)), ["tokens_per_sec < -5%"]
    )
    ((check,),) = (result.checks,)
    assert (check.check.outcome, check.check.why) == (outcome, why)
    assert "raw samples cannot be read of a, a: the tracked intervals count" in result.notes
    assert result.exit_code == (3 if outcome == "broken" else 0)
