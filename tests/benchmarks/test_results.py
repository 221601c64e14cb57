"""The format shared by all benchmarks: goals, rounds, JSON, and the page generated from it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import page, results
from benchmarks.results import Findings, Goal, Result, benchmark, estimate, load, rounds, row, section, table
from llmtrack.spec.outcome import Summary


def summary(median: float, low: float, high: float) -> Summary:
    return Summary(n=5, median=median, ci_low=low, ci_high=high, mean=median)


@pytest.mark.parametrize(
    ("goal", "figure", "verdict"),
    [
        (Goal(most=50), (-47.0, -60.0, -30.0), "met"),
        (Goal(most=0.5), (0.4, 0.3, 0.45), "met"),
        (Goal(most=0.5), (0.4, 0.3, 0.55), "met within doubt"),
        (Goal(most=0.5), (0.6, 0.4, 0.7), "missed within doubt"),
        (Goal(least=1.7), (1.5, 1.4, 1.6), "missed"),
        (Goal(0.99, 1.01, width=0.01), (1.002, 0.998, 1.004), "met"),
        (Goal(0.99, 1.01, width=0.01), (1.002, 0.98, 1.02), "missed: the interval is too wide"),
    ],
)
def test_a_goal_is_met_by_the_median_and_doubted_if_the_interval_crosses_it(goal, figure, verdict):
    assert goal.verdict(summary(*figure)) == verdict


def test_a_goal_is_formatted_with_its_bounds():
    assert str(Goal(0.99, 1.01, width=0.01)) == "≥ 0.99, ≤ 1.01, interval ≤ 1%"


def test_the_arms_of_a_round_rotate():
    called = []

    def arm(name, value):
        return lambda: called.append(name) or {"s": value}

    samples = rounds({"a": arm("a", 1.0), "b": arm("b", 2.0), "c": arm("c", 3.0)}, 3)
    assert "".join(called) == "abcbcacab"
    assert samples == {"a": {"s": [1.0] * 3}, "b": {"s": [2.0] * 3}, "c": {"s": [3.0] * 3}}


def test_each_arm_waits_for_the_threads_of_the_previous_one(monkeypatch):
    calls = []
    monkeypatch.setattr(results.time, "sleep", lambda seconds: calls.append(("rest", seconds)))
    rounds({name: lambda name=name: calls.append(name) or {"s": 1.0} for name in "ab"}, 1, settle=0.2)
    assert calls == [("rest", 0.2), "a", ("rest", 0.2), "b"]


def test_rounds_end_once_the_samples_suffice():
    samples = rounds({"a": lambda: {"s": 1.0}}, 9, enough=lambda so_far: len(so_far["a"]["s"]) == 4)
    assert samples["a"]["s"] == [1.0] * 4


@pytest.mark.parametrize(("theirs", "narrow"), [([2.0, 2.0, 2.0], True), ([2.0, 1.0, 4.0], False), ([2.0, 2.0], False)])
def test_samples_suffice_once_the_intervals_of_all_ratios_are_narrow(theirs, narrow):
    samples = {"ours": {"s": [1.0] * len(theirs)}, "theirs": {"s": theirs}}
    assert results.narrow(samples, "ours", "theirs", width=0.1, least=3) is narrow


def test_a_ratio_is_that_of_each_round_and_not_of_the_medians():
    result = row("time", "s", [1.0, 9.0, 3.0], [2.0, 3.0, 6.0], peer="theirs", goal=Goal(most=0.5))
    assert result.ours.median == 3.0
    assert result.ratio.median == 0.5  # of 0.5, 3 and 0.5
    assert result.verdict == "met within doubt"


def test_without_a_peer_the_goal_applies_to_our_own_figure():
    result = row("wall time", "s", [2.0, 2.0], goal=Goal(most=3))
    assert (result.ratio, result.verdict) == (None, "met")


def test_the_reason_is_kept_only_for_a_missed_goal():
    assert row("x", "", [2.0], goal=Goal(most=3), why="too slow").why == ""
    assert row("x", "", [4.0], goal=Goal(most=3), why="too slow").why == "too slow"


def test_an_estimate_with_an_interval_is_compared_with_its_goal():
    result = estimate("cost", "%", 1.5, (1.0, 2.5), where="here", goal=Goal(most=2))
    assert (result.goal, result.verdict, result.where) == ("≤ 2", "met within doubt", "here")
    assert "1.500 [1.000, 2.500] %" in table([result])
    assert "| 1.500 % |" in table([estimate("cost", "%", 1.5)])


@pytest.fixture
def result_file(tmp_path):
    """Return the file that a benchmark command wrote."""

    def measure(small: bool) -> Findings:
        return Findings(
            (row("time", "s", [1.0, 1.25], [2.0, 2.5], peer="theirs"),),
            ("another: not installed",),
            ("A note.",),
        )

    path = tmp_path / "made.json"
    done = CliRunner().invoke(benchmark("Made up")(measure), ["--small", "--json", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    return path


def test_a_result_is_read_back_as_it_was_written(result_file):
    result = load(result_file)
    assert isinstance(result, Result)
    assert (result.title, result.small) == ("Made up", True)
    assert result.machine["version.torch"]
    assert result.findings.rows[0].ratio.median == 0.5
    assert result.findings.left_out == ("another: not installed",)


def test_a_row_shows_both_sides_with_their_intervals(result_file):
    assert table(load(result_file).findings.rows).splitlines()[-1] == (
        "| time |  | 1.125 [1.000, 1.250] s | theirs: 2.250 [2.000, 2.500] s | 0.5000 [0.5000, 0.5000] |  |  |"
    )


def test_omissions_and_a_trial_are_stated(result_file):
    text = section(load(result_file))
    assert "- A note.\n- Left out: another: not installed" in text
    assert "A trial: these figures say nothing." in text


def test_a_page_changes_between_its_markers_only(result_file):
    stored = {"made": [load(result_file)]}
    before = "\n".join(
        f"{word}\n<!-- made by `make bench`: {name} -->\nold\n<!-- end -->"
        for word, name in [("before", "made"), ("between", "absent"), ("after", "machine")]
    )
    text = page.with_results(before + "\n", stored)
    assert text.count("old") == 1  # of the result that is not there
    assert "0.5000 [0.5000, 0.5000]" in text
    assert "| version.torch |" in text
    assert page.with_results(text, stored) == text


INTEL = {"cpu": "Intel(R) Xeon(R) Processor", "cpu_cores": "2", "cpu_instruction_sets": "avx2 amx_int8"}
AMD = {"cpu": "AMD EPYC", "cpu_cores": "2", "cpu_instruction_sets": "avx2"}
OLDER_AMD = {**AMD, "cpu_instruction_sets": ""}


def keep(folder, monkeypatch, facts, ours, where="2 threads", note="A note."):
    """Run a benchmark as `make bench` does, on a machine with these facts."""
    monkeypatch.setattr(results, "machine", lambda: facts)

    def measure(small: bool) -> Findings:
        return Findings(
            (row("decode", "tok/s", ours, [50.0, 50.0], where=where, peer="theirs", goal=Goal(least=1)),),
            notes=(note,),
        )

    done = CliRunner().invoke(benchmark("Made up")(measure), ["--keep", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def kept_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


def test_a_machine_is_identified_by_hardware_and_not_by_versions(monkeypatch):
    assert results.machine_title(INTEL) == "Intel(R) Xeon(R) Processor, 2 cores"
    assert results.machine_title({**AMD, "gpu": "NVIDIA H200"}) == "AMD EPYC, 2 cores, NVIDIA H200"
    same = results.machine_id({**AMD, "version.torch": "9", "memory_gib": "64", "os": "another"})
    assert same == results.machine_id(AMD)
    assert results.machine_id(AMD).startswith("amd-epyc-2-cores-")
    others = [INTEL, OLDER_AMD, {**AMD, "cpu_threads": "4"}, {**AMD, "gpu": "NVIDIA H200"}]
    assert len({results.machine_id(facts) for facts in (AMD, *others)}) == 5


def test_a_result_replaces_that_of_its_own_machine_only(tmp_path, monkeypatch):
    for facts, ours in (
        (INTEL, [40.0, 40.0]),
        (AMD, [60.0, 60.0]),
        ({**INTEL, "version.torch": "9"}, [45.0, 45.0]),
    ):
        keep(tmp_path, monkeypatch, facts, ours)
    assert len(kept_files(tmp_path)) == 2
    (amd, intel) = page.stored_results(tmp_path)["test_results"]
    assert (amd.machine["cpu"], amd.findings.rows[0].ours.median) == ("AMD EPYC", 60.0)
    assert (intel.machine["version.torch"], intel.findings.rows[0].ours.median) == ("9", 45.0)


def test_two_machines_get_a_column_each(tmp_path, monkeypatch):
    keep(tmp_path, monkeypatch, INTEL, [40.0, 40.0])
    keep(tmp_path, monkeypatch, AMD, [60.0, 60.0], note="Another note.")
    place = "<!-- made by `make bench`: test_results -->\n<!-- end -->\n"
    text = page.with_results(place, page.stored_results(tmp_path))
    assert "- `python -m benchmarks.test_results` on AMD EPYC, 2 cores, " in text
    assert "- `python -m benchmarks.test_results` on Intel(R) Xeon(R) Processor, 2 cores, " in text
    assert (
        "| figure | under | peer | goal | AMD EPYC, 2 cores | Intel(R) Xeon(R) Processor, 2 cores |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| decode | 2 threads | theirs | ≥ 1 "
        "| 60.00 [60.00, 60.00] tok/s against 50.00 [50.00, 50.00] tok/s, ratio 1.200 [1.200, 1.200]: met "
        "| 40.00 [40.00, 40.00] tok/s against 50.00 [50.00, 50.00] tok/s, ratio 0.8000 [0.8000, 0.8000]: missed |\n"
    ) in text
    assert "- Another note. (AMD EPYC, 2 cores)\n- A note. (Intel(R) Xeon(R) Processor, 2 cores)\n" in text
    assert page.with_results(text, page.stored_results(tmp_path)) == text


def test_a_figure_of_one_machine_leaves_the_others_cell_empty(tmp_path, monkeypatch):
    keep(tmp_path, monkeypatch, INTEL, [40.0, 40.0])
    keep(tmp_path, monkeypatch, AMD, [60.0, 60.0], where="8 threads")
    lines = results.sections(page.stored_results(tmp_path)["test_results"]).splitlines()
    (alone,) = (line for line in lines if "8 threads" in line)
    (other,) = (line for line in lines if "2 threads" in line)
    assert alone.endswith(": met |  |")
    assert "| ≥ 1 |  | 40.00" in other
    assert lines[-1] == "- A note.", "what holds of both is said once"


def test_two_machines_with_the_same_title_are_distinguished(tmp_path, monkeypatch):
    keep(tmp_path, monkeypatch, AMD, [60.0, 60.0])
    keep(tmp_path, monkeypatch, OLDER_AMD, [30.0, 30.0])
    stored = page.stored_results(tmp_path)["test_results"]
    head = next(line for line in results.sections(stored).splitlines() if line.startswith("| figure"))
    for facts in (AMD, OLDER_AMD):
        assert f"| AMD EPYC, 2 cores ({results.machine_id(facts)[-4:]}) |" in head
        assert results.machine_id(facts) in page.machines({"made": stored})


def test_an_unmeasured_part_is_marked():
    empty = "<!-- made by `make bench`: absent -->\n<!-- end -->\n"
    text = page.with_results(empty, {})
    assert "Not measured yet: `python -m benchmarks absent`." in text
    assert page.with_results(text, {}) == text


def test_the_page_matches_the_stored_results():
    text = page.PAGE.read_text(encoding="utf-8")
    stored = page.stored_results()
    assert not [name for name, of_name in stored.items() if any(result.small for result in of_name)]
    assert page.with_results(text, stored) == text, "run python -m benchmarks.page"


def test_each_stored_result_has_a_place_on_the_page():
    text = page.PAGE.read_text(encoding="utf-8")
    for name in page.stored_results():
        assert f"<!-- made by `make bench`: {name} -->" in text


def test_a_stored_result_is_small():
    for path in Path(page.RESULTS).rglob("*.json"):
        assert path.stat().st_size < 100_000
        json.loads(path.read_text(encoding="utf-8"))


def test_a_benchmarks_own_options_appear_in_its_command_without_local_folders(tmp_path):
    calls = []

    def measure(small: bool, model: str | None, text: str) -> Findings:
        calls.append((small, model, text))
        return Findings()

    options = (click.option("--model"), click.option("--text", default="builtin"))
    arguments = ["--model", str(tmp_path / "mine"), "--json", str(tmp_path / "found.json")]
    CliRunner().invoke(benchmark("t", *options)(measure), arguments, catch_exceptions=False)
    assert calls == [(False, str(tmp_path / "mine"), "builtin")]
    assert load(tmp_path / "found.json").command.endswith(" --model mine --text builtin")
