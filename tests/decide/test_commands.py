"""Commands that decide over one store: `compare` in every format, and one selector language for all."""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.compare import COLUMNS
from llmtrack.decide.selection import single_run_id
from llmtrack.tracking.read.lookup import set_alias
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def studies(measured, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return [f"study:{study.study_id}" for study in measured((1, 1.0), (2, 1.2))]


@pytest.fixture
def mixed(filled_once, uri, monkeypatch):
    """A study of runs that differ in a dtype and in an option that no table knows, one of them failed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return filled_once("mixed", mixed_runs)


def mixed_runs(tracker):
    study = tracker.start_study("quantization", "q", {}, ENVIRONMENT)
    base = {"model_id": "packaged:tiny", "device": "cpu", "batch_size": 2}
    facts_of = {"plain": {"dtype": "float32"}, "int8": {"dtype": "int8 <weights>", "block_size": 32}}
    ids = {
        name: tracker.log(
            study,
            measurement(
                name,
                scenario=scenario(name, baseline=name == "plain"),
                facts=base | facts,
                metrics={"tokens_per_sec": speed, "perplexity": 20.0} if name == "plain" else {"tokens_per_sec": speed},
            ),
        )
        for (name, facts), speed in zip(facts_of.items(), (10.0, 20.0), strict=True)
    }
    tracker.log(study, failure("int4", scenario=scenario("int4")))
    return ids


@pytest.mark.slow(5)
def test_compare_against_a_baseline(studies):
    output = run("--baseline", studies[0], "--metric", "tokens_per_sec").stdout
    assert "model: scripted" in output
    assert "differs in" not in output, "the settings are equal"
    lines = [line for line in output.splitlines() if line.startswith("prompt_")]
    assert len(lines) == 2
    assert all("- slower: 0." in line for line in lines)
    rows = json.loads(run("--baseline", studies[0], "--candidate", studies[1], "--format", "json").output)
    assert set(rows[0]) == set(COLUMNS)
    chosen = run("--baseline", studies[0], "--columns", "scenario,ratio", "--sort", "-ratio", "--format", "csv").stdout
    ratios = [float(row["ratio"]) for row in csv.DictReader(io.StringIO(chosen))]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.slow(1)
def test_compare_lists_differences_and_states_the_rest_once(mixed):
    output = run("--baseline", mixed["plain"], "--candidate", "latest", "--metric", "tokens_per_sec").output
    assert "baseline: plain" in output
    (line,) = [line for line in output.splitlines() if line.strip().startswith("int8")]
    assert "dtype float32 → int8 <weights>, block_size – → 32" in line
    assert "2.0x, one value each: noise unknown" in line
    assert "failed: out of memory: needs 9 GiB" in output
    side_by_side = run().output
    head = next(line for line in side_by_side.splitlines() if "scenario" in line and "tokens/s" in line)
    assert "block_size" in head
    assert "dtype" in head
    assert "batch" not in head
    assert "batch: 2" in side_by_side


@pytest.mark.slow(2)
def test_compare_writes_every_format(mixed):
    page = run("--format", "html").output
    assert "block_size" not in page, "the columns of the study's own table"
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
def test_mistakes_in_compare_are_one_line(mixed, arguments, message):
    result = run(*arguments, code=2)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow(1)
def test_compare_filters_by_tag_and_time(mixed):
    assert "int4" in run("--tag", "llmtrack.failure=out_of_memory").output
    assert "plain" not in run("--tag", "llmtrack.failure=out_of_memory").output
    assert "no tracked run matches" in run("--since", "2020-01-01", "--until", "2020-01-02", code=2).stderr
    assert "KEY=VALUE" in run("--tag", "x", code=2).stderr


@pytest.fixture
def named(filled_once, uri, monkeypatch):
    """Return every name of one study, and of the run of its scenario `fast`; another study is newer."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return filled_once("named", every_name)


def every_name(tracker):
    study = tracker.start_study("precision", "q", {}, {**ENVIRONMENT, "git_branch": "main"})
    figures = {"plain": (10.0, 20.0), "fast": (20.0, 21.0)}
    ids = {
        name: tracker.log(
            study,
            measurement(
                name,
                scenario=scenario(name, baseline=name == "plain"),
                metrics={"tokens_per_sec": speed, "perplexity": perplexity, "peak_memory_mib": 100.0},
            ),
        )
        for name, (speed, perplexity) in figures.items()
    }
    tracker.finish_study(study, "finished")
    other = tracker.start_study("other", "q", {}, ENVIRONMENT)
    for name in figures:
        tracker.log(other, measurement(name, metrics={"tokens_per_sec": 9.0, "perplexity": 20.0}))
    tracker.finish_study(other, "finished")
    set_alias("whole", study.run_id, tracker.tracking_uri)
    set_alias("one", ids["fast"], tracker.tracking_uri)
    study_names = {
        "id of the study": study.study_id,
        "id of its run": study.run_id,
        "id as listed": study.run_id[:8],
        "study:": f"study:{study.study_id}",
        "study: of a run": f"study:{study.run_id[:8]}",
        "latest:": "latest:precision",
        "alias:": "alias:whole",
    }
    scenario_names = {f"{kind} of one": f"{name}#fast" for kind, name in study_names.items()}
    run_names = {"a run": ids["fast"], "a run as listed": ids["fast"][:8], "alias: of a run": "alias:one"}
    return study_names, scenario_names, run_names


def stdout_of(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 1, 3), f"{arguments}: {result.output} {result.exception}"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.stdout


COMMANDS_BY_STUDY = {
    "compare": ["compare", "--study"],
    "runs": ["runs", "--study"],
    "pareto": ["pareto", "--study"],
    "recommend": ["recommend", "--study"],
    "compare against a baseline": ["compare", "--baseline", "latest:precision#plain", "--study"],
}


GATE = ["gate", "--fail-if", "perplexity > 50%"]
COMMANDS_BY_SELECTOR = {
    "compare --baseline": ["compare", "--candidate", "latest:other", "--baseline"],
    "compare --candidate": ["compare", "--baseline", "latest:precision#plain", "--candidate"],
    "gate --baseline": [*GATE, "--candidate", "latest:other", "--baseline"],
    "gate --candidate": [*GATE, "--baseline", "latest:precision#plain", "--candidate"],
}


@pytest.mark.slow(4)
def test_every_command_takes_every_selector(named):
    """Two selectors each, in turn; `test_selection.py` tests all of them."""
    study_names, scenario_names, run_names = named
    of_study, of_scenario = itertools.cycle(study_names.values()), itertools.cycle(scenario_names.values())
    for command, words in COMMANDS_BY_STUDY.items():
        for name in (next(of_study), next(of_scenario)):
            assert "fast" in stdout_of(*words, name), f"{command} {name}"
    of_study = itertools.cycle([*study_names.values(), "branch:main"])
    of_scenario = itertools.cycle([*run_names.values(), *scenario_names.values()])
    for command, words in COMMANDS_BY_SELECTOR.items():
        for name in (next(of_study), next(of_scenario)):
            assert "fast" in stdout_of(*words, name), f"{command} {name}"


@pytest.mark.slow(4)
def test_an_alias_is_given_to_any_selector_of_one_run(named):
    study_names, scenario_names, run_names = named
    for names in (study_names, scenario_names | run_names):
        assert len({single_run_id(name)[:8] for name in names.values()}) == 1, names
    assert "alias:x is " in stdout_of("alias", "x", "latest:precision#fast")
    several = CliRunner().invoke(main, ["alias", "z", "branch:main"])
    assert several.exit_code == 2
    assert "matches 2 runs: name one by its id" in several.output


@pytest.mark.slow(4)
def test_a_report_is_of_a_whole_study(named):
    result = CliRunner().invoke(main, ["report", "latest:precision#fast"])
    assert result.exit_code == 2
    assert "name the whole study, 'latest:precision'" in result.output


PAIR = ["--baseline", "latest:precision#plain", "--candidate", "latest:precision"]
TABLES = {
    "compare": ["compare"],
    "runs": ["runs"],
    "pareto": ["pareto"],
    "compare --baseline": ["compare", *PAIR],
    "gate": [*GATE, *PAIR],
}


@pytest.mark.slow(4)
@pytest.mark.usefixtures("named")
def test_every_table_takes_columns():
    for command, words in TABLES.items():
        chosen = "candidate" if "--baseline" in words else "peak_memory_mib"
        rows = list(csv.reader(io.StringIO(stdout_of(*words, "--columns", chosen, "--format", "csv"))))
        assert {"candidate", "peak_memory_mib", "peak MiB"} & set(rows[0]), command
        assert len(rows[0]) <= 5, command
        result = CliRunner().invoke(main, [*words, "--columns", "nonsense_of_mine"])
        assert (result.exit_code, "no column 'nonsense_of_mine'" in result.output) == (2, True), command
