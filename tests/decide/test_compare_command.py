"""`llmtrack compare`: side by side or against a baseline, in every format."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.comparing import COLUMNS
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def studies(measured, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return [f"study:{each.study_id}" for each in measured((1, 1.0), (2, 1.2))]


@pytest.fixture
def mixed(filled_once, uri, monkeypatch):
    """A study of runs that differ in a dtype and in an option that no table knows, one of them failed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return filled_once("mixed", mixed_runs)


def mixed_runs(tracker):
    study = tracker.start_study("quantization", "q", {}, ENVIRONMENT)
    base = {"model_id": "packaged:tiny", "device": "cpu", "batch_size": 2}
    facts = {
        "plain": {"dtype": "float32"},
        "int8": {"dtype": "int8 <weights>", "block_size": 32},
    }
    ids = {
        name: tracker.log(
            study,
            measurement(
                name,
                scenario=scenario(name, baseline=name == "plain"),
                facts=base | own,
                metrics={"tokens_per_sec": speed, "perplexity": 20.0} if name == "plain" else {"tokens_per_sec": speed},
            ),
        )
        for (name, own), speed in zip(facts.items(), (10.0, 20.0), strict=True)
    }
    tracker.log(study, failure("int4", scenario=scenario("int4")))
    return ids


@pytest.mark.slow(5)
def test_against_a_baseline(studies):
    told = run("--baseline", studies[0], "--metric", "tokens_per_sec").stdout
    assert "model: scripted" in told
    assert "differs in" not in told, "nothing was asked differently"
    lines = [line for line in told.splitlines() if line.startswith("prompt_")]
    assert len(lines) == 2
    assert all("- slower: 0." in line for line in lines)
    rows = json.loads(run("--baseline", studies[0], "--candidate", studies[1], "--format", "json").output)
    assert set(rows[0]) == set(COLUMNS)
    chosen = run("--baseline", studies[0], "--columns", "scenario,ratio", "--sort", "-ratio", "--format", "csv").stdout
    ratios = [float(row["ratio"]) for row in csv.DictReader(io.StringIO(chosen))]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.slow(1)
def test_what_differs_is_shown_and_what_does_not_is_said_once(mixed):
    told = run("--baseline", mixed["plain"], "--candidate", "latest", "--metric", "tokens_per_sec").output
    assert "baseline: plain" in told
    (line,) = [line for line in told.splitlines() if line.strip().startswith("int8")]
    assert "dtype float32 → int8 <weights>, block_size – → 32" in line
    assert "2.0x, one value each: noise unknown" in line
    assert "failed: out of memory: needs 9 GiB" in told
    side_by_side = run().output
    head = next(line for line in side_by_side.splitlines() if "scenario" in line and "tokens/s" in line)
    assert "block_size" in head
    assert "dtype" in head
    assert "batch" not in head
    assert "batch: 2" in side_by_side


@pytest.mark.slow(2)
def test_formats_of_the_table_side_by_side(mixed):
    own = run("--format", "html").output
    assert "block_size" not in own, "the columns of the study's own table"
    page = run("--format", "html", "--wide").stdout
    assert "int8 &lt;weights&gt;" in page
    assert "block_size" in page
    assert "<weights>" not in page
    assert page.count("<tr>") == 4
    latex = run("--format", "latex", "--columns", "dtype,tokens_per_sec").output
    assert r"\begin{tabular}{llrl}" in latex
    assert r"out of memory" in latex
    rows = list(csv.DictReader(io.StringIO(run("--format", "csv", "--sort", "-tokens_per_sec").stdout)))
    assert [row["scenario"] for row in rows] == ["int8", "plain", "int4"]
    assert rows[1]["run_id"] == mixed["plain"]
    assert rows[0]["perplexity"] == "–", "a run without a metric shows a dash"
    named = {row["scenario"]: row for row in json.loads(run("--format", "json").stdout)}
    assert named["int4"]["against baseline"] == "FAILED (out_of_memory)"
    assert "| int8 |" in run("--format", "markdown").output


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sort", "token_per_sec"], "no column 'token_per_sec': did you mean tokens_per_sec"),
        (["--columns", "dtyp"], "no column 'dtyp': did you mean dtype"),
        (["--metric", "loss"], "need a --baseline"),
        (["--baseline", "latest", "--model", "x"], "choose runs by --candidate"),
        (["--baseline", "newest"], "invalid selector 'newest': use a run id"),
        (["--since", "soon"], "is not a time"),
    ],
)
def test_mistakes_are_one_line(mixed, arguments, message):
    result = run(*arguments, code=2)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow(1)
def test_filters_by_tag_and_time(mixed):
    assert "int4" in run("--tag", "llmtrack.failure=out_of_memory").output
    assert "plain" not in run("--tag", "llmtrack.failure=out_of_memory").output
    assert "no tracked run matches" in run("--since", "2020-01-01", "--until", "2020-01-02", code=2).stderr
    assert "KEY=VALUE" in run("--tag", "x", code=2).stderr
