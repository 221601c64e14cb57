"""One selector language, one rule for ids and one way to choose columns, whichever command is asked."""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.selection import run_named
from llmtrack.tracking.read.lookup import set_alias
from tests.tracking.samples import ENVIRONMENT, measurement, scenario

pytestmark = [pytest.mark.usefixtures("_clean_environment"), pytest.mark.slow(4)]


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
    whole = {
        "id of the study": study.study_id,
        "id of its run": study.run_id,
        "id as listed": study.run_id[:8],
        "study:": f"study:{study.study_id}",
        "study: of a run": f"study:{study.run_id[:8]}",
        "latest:": "latest:precision",
        "alias:": "alias:whole",
    }
    fast = {f"{kind} of one": f"{name}#fast" for kind, name in whole.items()}
    by_run = {"a run": ids["fast"], "a run as listed": ids["fast"][:8], "alias: of a run": "alias:one"}
    return whole, fast, by_run


def asked(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (0, 1, 3), f"{arguments}: {done.output} {done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout


COMMANDS_BY_STUDY = {
    "compare": ["compare", "--study"],
    "runs": ["runs", "--study"],
    "pareto": ["pareto", "--study"],
    "recommend": ["recommend", "--study"],
    "compare against a baseline": ["compare", "--baseline", "latest:precision#plain", "--study"],
}
COMMANDS_BY_SELECTOR = {
    "compare --baseline": ["compare", "--candidate", "latest:other", "--baseline"],
    "compare --candidate": ["compare", "--baseline", "latest:precision#plain", "--candidate"],
    "gate --baseline": [
        "gate",
        "--fail-if",
        "perplexity > 50%",
        "--candidate",
        "latest:other",
        "--baseline",
    ],
    "gate --candidate": [
        "gate",
        "--fail-if",
        "perplexity > 50%",
        "--baseline",
        "latest:precision#plain",
        "--candidate",
    ],
}


def test_every_command_takes_any_name(named):
    """Two names each, in turn: that each name means the same, `test_selectors.py` tells of the functions behind them."""
    whole, fast, by_run = named
    names, ones = itertools.cycle(whole.values()), itertools.cycle([*fast.values()])
    for command, words in COMMANDS_BY_STUDY.items():
        for name in (next(names), next(ones)):
            assert "fast" in asked(*words, name), f"{command} {name}"
    names = itertools.cycle([*whole.values(), "branch:main"])
    ones = itertools.cycle([*by_run.values(), *fast.values()])
    for command, words in COMMANDS_BY_SELECTOR.items():
        for name in (next(names), next(ones)):
            assert "fast" in asked(*words, name), f"{command} {name}"


def test_an_alias_is_given_to_whatever_names_one_run(named):
    whole, fast, by_run = named
    for names in (whole, fast | by_run):
        assert len({run_named(name)[:8] for name in names.values()}) == 1, names
    assert "alias:x is " in asked("alias", "x", "latest:precision#fast")
    several = CliRunner().invoke(main, ["alias", "z", "branch:main"])
    assert several.exit_code == 2
    assert "matches 2 runs: name one by its id" in several.output


def test_a_report_is_of_a_whole_study(named):
    done = CliRunner().invoke(main, ["report", "latest:precision#fast"])
    assert done.exit_code == 2
    assert "name the whole study, 'latest:precision'" in done.output


COLUMNS = {
    "compare": ["compare"],
    "runs": ["runs"],
    "pareto": ["pareto"],
    "compare --baseline": [
        "compare",
        "--baseline",
        "latest:precision#plain",
        "--candidate",
        "latest:precision",
    ],
    "gate": [
        "gate",
        "--fail-if",
        "perplexity > 50%",
        "--baseline",
        "latest:precision#plain",
        "--candidate",
        "latest:precision",
    ],
}


@pytest.mark.usefixtures("named")
def test_every_table_lets_columns_be_chosen_alike():
    for command, words in COLUMNS.items():
        chosen = "candidate" if "--baseline" in words else "peak_memory_mib"
        rows = list(csv.reader(io.StringIO(asked(*words, "--columns", chosen, "--format", "csv"))))
        assert {"candidate", "peak_memory_mib", "peak MiB"} & set(rows[0]), command
        assert len(rows[0]) <= 5, command
        done = CliRunner().invoke(main, [*words, "--columns", "nonsense_of_mine"])
        assert (done.exit_code, "no column 'nonsense_of_mine'" in done.output) == (2, True), command
