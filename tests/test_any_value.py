"""Commands accept or refuse any value of any option: in one line, without a traceback, without much memory."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import declarations, suite
from llmtrack.cli import main as llmtrack_command
from llmtrack.run import command as entry
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import LARGEST
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.conftest import _clean_environment  # noqa: F401 - fixture
from tests.tracking.samples import ENVIRONMENT, failure, measurement

NUMBERS = [
    "nan", "inf", "-inf", "-1", "0", "1", "1e400", "999999999999", "1,30000000", "1_000", "0x10", "9" * 5_000, "1," * 3_000,
    "-0", "½", "1e-400", str(LARGEST), "9" * 400 + "%", "9" * 400 + "GiB", "0d", "99999999999d", "5%",
]  # fmt: skip
WORDS = ["", " ", "none", "all", "\x00", "\udcff", "[red]", "a" * 5_000, "%", "..", "-", "=", "~no_one/x"]
VALUES = st.one_of(st.sampled_from(NUMBERS + WORDS), st.text(max_size=8), st.integers().map(str), st.floats().map(str))

EXPERIMENTS = {**{name: entry.command(declared) for name, declared in declarations().items()}, "suite": suite.main}
# Required beside the tried option, and what keeps a command short.
REQUIRED = {
    "gate": {"--baseline": "latest", "--candidate": "latest", "--fail-if": "tokens_per_sec < -5%"},
    "alias": {"name": "production", "selector": "0" * 32},
    "report": {"study": "latest"},
    "promote": {"selector": "0" * 32, "--as": "tiny@production"},
    "init": {"folder": "project"},
    "run": {"experiment": "baseline"},
    "generate": {"prompts": "a", "--model": "synthetic:tiny", "--max-new-tokens": "1"},
}
UNTRIED = ("--tracking-uri", "--output", "--junit", "--spool")


def subcommands(command: click.Command, *path: str) -> dict[str, click.Command]:
    """Return every command below one, by the words that call it."""
    if not isinstance(command, click.Group):
        return {" ".join(path): command}
    commands = {}
    for name in command.list_commands(click.Context(command)):
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None
        commands |= subcommands(subcommand, *path, name)
    return commands


COMMANDS = subcommands(llmtrack_command)


def options_of(command: click.Command) -> list[str]:
    """Return the options that take a value, and arguments by name."""
    names = [parameter.opts[0] for parameter in command.params if not getattr(parameter, "is_flag", False)]
    return [name for name in names if name not in UNTRIED]


def check(result: Result, line: list[str]) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exc_info)
    assert result.exit_code in (0, 1, 2, 3), (line, result.output)
    assert "Traceback" not in result.output


@pytest.fixture(autouse=True)
def _working_folder(monkeypatch, tmp_path):
    """A value that is taken for a file name must not name a file of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _nothing_is_run(monkeypatch):
    """Build experiments without measuring."""
    result = SimpleNamespace(exit_code=0, study=None)
    monkeypatch.setattr(entry, "run_experiment", lambda experiment, config: None)
    monkeypatch.setattr(suite, "open_tracker", lambda config: SimpleNamespace(offline=True))
    monkeypatch.setattr(suite, "run_suite", lambda experiments, **kwargs: result)
    monkeypatch.setattr(suite, "print_location", lambda *args: None)


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_nothing_is_run")
@pytest.mark.parametrize("name", EXPERIMENTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_experiment_accepts_or_refuses_any_value(name, data):
    option = data.draw(st.sampled_from(options_of(EXPERIMENTS[name])))
    line = [option, data.draw(VALUES)]
    tracemalloc.start()
    try:
        result = CliRunner().invoke(EXPERIMENTS[name], line)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
    check(result, line)
    if result.exit_code == 2:
        assert "error: " in result.output
        assert result.output.count("\n") == 1


@pytest.mark.usefixtures("_nothing_is_run")
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "999999999999", "9" * 5_000, "1,30000000000"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_number_of_an_experiment_is_bounded(name, value):
    for parameter in parameters(EXPERIMENTS[name].config):
        if parameter.kind in (int, float):
            result = CliRunner().invoke(EXPERIMENTS[name], [parameter.flag, value])
            assert (result.exit_code, result.output.count("\n")) == (2, 1), (parameter.name, result.output)


@pytest.fixture(scope="module")
def stored(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a small study, shared by all values: none may change it."""
    folder = tmp_path_factory.mktemp("stored")
    shutil.copyfile(template_database, folder / "mlflow.db")
    tracker = Tracker.open(f"sqlite:///{folder / 'mlflow.db'}", spool=folder / "spool", notify=print)
    study = tracker.start_study("prompt_length", "Why?", {"a": 1}, ENVIRONMENT)
    tracker.log(study, measurement())
    tracker.log(study, failure("p128"))
    tracker.finish_study(study, "failed")
    return tracker.tracking_uri


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a large padding or batch instead of building it: it would take the memory of other tests."""
    monkeypatch.setattr("llmtrack.measure.memory.free_memory", lambda device: 2**22)


@pytest.fixture
def _store(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stored)


def llmtrack(name: str, option: str, value: str) -> Result:
    line = name.split()
    for key, text in {**REQUIRED.get(name, {}), option: value}.items():
        line += [key, text] if key.startswith("-") else [text]
    result = CliRunner().invoke(llmtrack_command, line)
    check(result, line)
    return result


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_store", "_little_memory")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_llmtrack_command_accepts_or_refuses_any_value(data):
    name = data.draw(st.sampled_from([name for name in COMMANDS if options_of(COMMANDS[name])]))
    llmtrack(name, data.draw(st.sampled_from(options_of(COMMANDS[name]))), data.draw(VALUES))


def test_every_command_is_tried():
    assert {"alias", "doctor", "gate", "report", "runs"} <= set(COMMANDS)
    for name, command in COMMANDS.items():
        required = {parameter.opts[0] for parameter in command.params if parameter.required}
        assert required <= set(REQUIRED.get(name, {})), "add it, or the command is refused before it reads a value"


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize("value", ["\x00", "\udcff", "a" * 5_000, ""])
@pytest.mark.parametrize(("name", "option"), [("alias", "name"), ("alias", "selector"), ("report", "study")])
def test_an_invalid_argument_is_refused(name, option, value):
    assert llmtrack(name, option, value).exit_code == 2


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize(
    ("name", "option", "value", "code"),
    [
        ("runs", "--since", "99999999999d", 2),
        ("runs", "--since", "9" * 5_000 + "d", 2),
        ("pareto", "--model", "nothing", 2),
        ("recommend", "--since", "0d", 2),
        ("recommend", "--max-memory", "9" * 400 + "GiB", 2),
        ("recommend", "--max-perplexity-increase", "9" * 400 + "%", 2),
        ("gate", "--alpha", "nan", 2),
        ("gate", "--fail-if", "tokens_per_sec < -" + "9" * 400 + "%", 2),
        ("runs", "--model", "\udcff", 2),
        ("sync", "--spool", "\x00", 2),
        ("sync", "--spool", "a" * 5_000, 2),
    ],
)
def test_values_that_once_failed_or_passed_wrongly_are_refused(name, option, value, code):
    assert llmtrack(name, option, value).exit_code == code


@pytest.mark.parametrize("alpha", ["nan", "inf", "0", "1", "-0.05", "x"])
def test_alpha_is_between_0_and_1(alpha):
    result = llmtrack("gate", "--alpha", alpha)
    assert result.exit_code == 2
    assert "error: alpha" in result.output
