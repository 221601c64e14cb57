"""Positions on the front, by hand, within noise and by the command."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.cli import main
from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.pareto import pareto_front, position_of
from llmtrack.report.pareto import pareto_plot, pareto_table
from llmtrack.tracking.read.query import newest_study
from tests.report.artificial_runs import make_runs, repeated

pytestmark = pytest.mark.usefixtures("_clean_environment")


verdicts = st.lists(st.sampled_from(["better", "same", "worse", "unknown"]), min_size=2, max_size=2)


def test_positions_by_hand():
    assert position_of({}) == ("on", [])
    assert position_of({0: ["worse", "better"], 1: ["same", "same"], 2: ["unknown", "worse"]}) == ("on", [])
    assert position_of({0: ["better", "worse"], 1: ["same", "better"], 2: ["unknown", "better"]}) == ("off", [1])
    assert position_of({0: ["unknown", "better"], 1: ["same", "same"], 2: ["same", "unknown"]}) == ("open", [0, 2])


@pytest.mark.slow(1)
@given(st.lists(verdicts, max_size=5))
def test_a_scenario_is_off_if_surely_beaten_and_open_if_possibly(rivals):
    outcomes = {"unknown": ("better", "same", "worse")}

    def beaten(by):
        return any(set(rival) <= {"better", "same"} and "better" in rival for rival in by)

    conclusive = [rival for rival in rivals if "unknown" not in rival]
    possible = itertools.product(
        *(itertools.product(*(outcomes.get(verdict, (verdict,)) for verdict in rival)) for rival in rivals)
    )
    possibly = any(map(beaten, possible))
    expected = "off" if beaten(conclusive) else "open" if possibly else "on"
    assert position_of(dict(enumerate(rivals)))[0] == expected


def places(*rows, metrics=("tokens_per_sec", "perplexity")):
    runs = make_runs(*rows)
    return dict(zip(runs.scenarios, (standing.position for standing in pareto_front(runs, metrics)), strict=True))


def test_insignificant_differences_decide_no_position():
    lucky = repeated("lucky", 10.1, 21.0, share=0.05)
    assert places(repeated("plain", 10.0, 20.0, share=0.05), lucky) == {"plain": "on", "lucky": "off"}
    same = repeated("same", 10.1, 20.01, share=0.05)
    assert places(repeated("plain", 10.0, 20.0, share=0.05), same) == {"plain": "on", "same": "on"}
    assert places(repeated("plain", 10.0, 20.0), repeated("fast", 20.0, 19.0)) == {
        "plain": "off",
        "fast": "on",
    }


@pytest.mark.slow(1)
def test_an_inconclusive_position_comes_with_the_command_to_settle_it():
    runs = make_runs(repeated("plain", 10.0, 20.0), repeated("once", 30.0, 21.0, n=1))
    plain, once = pareto_front(runs, ("tokens_per_sec", "perplexity"))
    assert (plain.position, once.position) == ("on", "open"), "plain is surely better in perplexity"
    assert "inconclusive against plain (tokens_per_sec: too few repeats, 1 against 8" in once.why
    assert "min_repeats=4" in once.command
    table = pareto_table(gather_candidates(runs), ("tokens_per_sec", "perplexity"))
    assert table.notes == (f"inconclusive; to settle it run: {once.command}",)
    figure = pareto_plot(gather_candidates(runs), "tokens_per_sec", "perplexity")
    assert "Hollow: inconclusive" in figure.get_supxlabel()


@pytest.mark.slow(1)
def test_more_scenarios_need_more_repeats_to_be_conclusive():
    few = [repeated(f"a{n}", 10.0 + n, 20.0, n=5) for n in range(8)]
    assert set(places(*few).values()) == {"open"}
    note = pareto_plot(gather_candidates(make_runs(*few)), "tokens_per_sec", "perplexity").get_supxlabel()
    assert "line" not in note, "there is none"
    assert max(map(len, note.splitlines())) <= 118, "longer lines leave the picture"
    enough = [repeated(f"a{n}", 10.0 + n, 20.0, n=6) for n in range(8)]
    assert [name for name, where in places(*enough).items() if where == "on"] == ["a7"]


def of_tune(name, speed, perplexity, beaten_by=None, **values):
    found = {"tuned_for": "tokens_per_sec", "race_beaten_by": beaten_by}
    return repeated(name, speed, perplexity, n=3, **found | values)


def test_what_a_search_has_decided_is_not_inconclusive_afterwards():
    """It stops sampling a candidate once another is better, with fewer repeats than a comparison of all needs."""
    rows = {"fast": (30.0, 20.0, None), "middle": (29.0, 20.0, "fast"), "slow": (28.0, 20.0, "middle, fast")}
    undecided = [of_tune(name, *row[:2]) for name, row in rows.items()]
    assert places(*undecided) == {"fast": "open", "middle": "open", "slow": "open"}, "too few repeats"
    decided = [of_tune(name, *row) for name, row in rows.items()]
    assert places(*decided) == {"fast": "on", "middle": "off", "slow": "off"}
    # Better in quality, a candidate remains on the front.
    precise = of_tune("slow", 28.0, 19.0, "middle, fast")
    assert places(*decided[:2], precise) == {"fast": "on", "middle": "off", "slow": "on"}
    # A search decides on its own candidates, and on its objective.
    elsewhere = [*decided[:2], of_tune("slow", 28.0, 20.0, "middle, fast", study_id="tune-2")]
    assert places(*elsewhere)["fast"] == "open"
    in_another_metric = [dict(row, tuned_for="decode_tokens_per_sec") for row in decided]
    assert places(*in_another_metric)["fast"] == "open"


def test_a_divergence_of_0_is_the_best():
    rows = (repeated("plain", 10.0, 20.0, kl_divergence=0.0), repeated("int8", 10.0, 20.0, kl_divergence=0.1))
    assert places(*rows, metrics=("tokens_per_sec", "kl_divergence")) == {"plain": "on", "int8": "off"}


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
def test_the_command_prints_and_draws(tmp_path):
    path = tmp_path / "front.png"
    result = CliRunner().invoke(main, ["pareto", "--output", str(path), "--memory"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("on the front") == 3
    assert path.read_bytes()[:4] == b"\x89PNG"
    as_json = CliRunner().invoke(main, ["pareto", "--format", "json"])
    assert [row["scenario"] for row in json.loads(as_json.stdout)] == ["int4", "int8", "fp32"]
    assert as_json.stderr == f"latest: {newest_study()} (--study chooses another)\n"


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quality", "bits_per_byte"], "no timed scenario has bits_per_byte"),
        (["--quality", "tokens_scored"], "no better direction"),
        (["--speed", "token_per_sec"], "did you mean tokens_per_sec"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    result = CliRunner().invoke(main, ["pareto", "--study", "latest", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    (mistake,) = result.stderr.splitlines()
    assert mistake.startswith("error: ")
    assert message in mistake
    # The default selection is reported with an answer only.
    unchosen = CliRunner().invoke(main, ["pareto", *arguments])
    assert (unchosen.exit_code, unchosen.stdout, unchosen.stderr.splitlines()) == (2, "", [mistake])
