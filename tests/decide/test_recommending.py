"""A recommendation names its reason, what was ruled out by what, and says when nothing fits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.recommending import Limits, parse_percent, parse_size, recommend
from llmtrack.errors import UsageError
from tests.decide.test_pareto import timed as timed_run
from tests.decide.test_pareto import tracked  # noqa: F401 - fixture
from tests.report.frames import frame, interval, run

pytestmark = pytest.mark.usefixtures("_clean_environment")


def timed(name, speed, **values):
    return timed_run(name, speed, quantization=name, **values)


RUNS = frame(
    timed("fp32", 10.0, perplexity=20.0, peak_memory_mib=2000.0, baseline=True),
    timed("int8", 25.0, perplexity=20.1, peak_memory_mib=600.0),
    timed("int8_slow", 20.0, perplexity=20.1, peak_memory_mib=500.0),
    timed("int4", 40.0, perplexity=24.0, peak_memory_mib=400.0),
    timed("unscored", 90.0, peak_memory_mib=400.0),
    run("int2", status="FAILED", outcome="failed", reason="no kernel"),
)


def test_the_fastest_that_keeps_to_the_limits():
    found = recommend(RUNS, Limits(0.01, 2048))
    assert (found.scenario, found.run_id) == ("int8", "id-int8")
    assert found.sentence == (
        "Run int8: of 5 scenarios it is the best in tokens_per_sec that keeps to the limits, with 25 tokens/s "
        "(2.50 times fp32), perplexity 20.100 (+0.5 %) and 600 MiB peak memory."
    )
    assert dict(found.ruled_out) == {
        "int4": "perplexity +20 % is over +1 %",
        "unscored": "no perplexity was scored",
        "int2": "failed: no kernel",
        "int8_slow": "20 tokens/s",
        "fp32": "10 tokens/s",
    }


def test_memory_rules_out_too_and_without_limits_the_fastest_is_best():
    assert recommend(RUNS, Limits(0.01, 550)).scenario == "int8_slow"
    best = recommend(RUNS, Limits())
    assert best.scenario == "unscored"
    assert "perplexity not known" in best.sentence
    smallest = recommend(RUNS, Limits(0.01), "peak_memory_mib")
    assert smallest.scenario == "int8_slow"


def test_nothing_fits_is_said_with_the_nearest():
    found = recommend(RUNS, Limits(0.001, 100))
    assert (found.scenario, found.run_id) == (None, None)
    assert found.sentence == (
        "Nothing fits: none of 5 scenarios keeps to perplexity +0.1 % and 100 MiB; the nearest is fp32 "
        "(peak memory 2,000 MiB is over 100 MiB)."
    )
    assert len(found.ruled_out) == 6


def test_what_is_as_fast_within_the_noise_is_told():
    runs = frame(
        timed(
            "a", 10.0, **{k: v for k, v in interval("tokens_per_sec", 10.0, 9.5, 10.5).items() if "/" in k}
        ),
        timed(
            "b", 10.2, **{k: v for k, v in interval("tokens_per_sec", 10.2, 9.8, 10.6).items() if "/" in k}
        ),
    )
    found = recommend(runs, Limits())
    assert found.scenario == "b"
    assert dict(found.ruled_out) == {"a": "10 tokens/s, no different within the noise"}


def test_the_reference_can_be_named():
    assert recommend(RUNS, Limits(0.2), baseline="int8").scenario == "int4"
    with pytest.raises(UsageError, match="no timed scenario 'nope': use one of fp32"):
        recommend(RUNS, Limits(0.2), baseline="nope")
    with pytest.raises(UsageError, match="no better direction"):
        recommend(RUNS, Limits(), "tokens_scored")


@pytest.mark.parametrize(
    ("text", "mib"), [("2GiB", 2048), ("500 MB", 500e6 / 2**20), ("1.5g", 1.5e9 / 2**20), ("64MiB", 64)]
)
def test_sizes(text, mib):
    assert parse_size(text) == pytest.approx(mib)


@pytest.mark.parametrize("text", ["2048", "two", "-1GiB", ""])
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError, match="2GiB"):
        parse_size(text)


def test_percentages():
    assert parse_percent("1%") == parse_percent(" +1 % ") == 0.01
    with pytest.raises(UsageError, match="use 1%"):
        parse_percent("0.01")


@pytest.mark.usefixtures("tracked")
def test_the_command():
    arguments = ["recommend", "--max-perplexity-increase", "1%", "--max-memory", "2GiB"]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 0, told.output
    assert told.output.startswith("Run int8: of 3 scenarios")
    assert "int4  perplexity +30 % is over +1 %" in told.output
    assert json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).output)["scenario"] == "int8"
    nothing = CliRunner().invoke(main, ["recommend", "--max-memory", "1MiB"])
    assert nothing.exit_code == 1
    assert nothing.output.startswith("Nothing fits")
    assert CliRunner().invoke(main, ["recommend", "--max-memory", "1"]).exit_code == 2
