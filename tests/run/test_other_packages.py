"""An executor and an experiment of another package: found by entry points, tested by the kit, named in errors.

tests/test_packaging.py runs the experiment on the executor.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module

import pytest
from click.testing import CliRunner

import llmtrack
from llmtrack.cli import doctor
from llmtrack.cli import main as command
from llmtrack.errors import ExtensionError, ScenarioError, UsageError
from llmtrack.experiment import Experiment
from llmtrack.host.entry_points import named_experiment
from llmtrack.run import main as entry
from llmtrack.run.executors.executor import Executor
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import RunOptions
from llmtrack.testing import EngineConformance, ExecutorConformance, ExperimentConformance
from llmtrack.tracked.runs import Runs
from tests.extensions import PLUGINS, install, install_plugins
from tests.run.scenarios import generating


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory):
    """Put both packages on the import path."""
    place = tmp_path_factory.mktemp("site")
    install_plugins(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        yield place
    for package in PLUGINS:
        sys.modules.pop(package, None)


class Chosen(RunOptions):
    """Settings of a process that was started with the package installed; choices are read once."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.slow(2)
class TestExecutor(ExecutorConformance):
    def make(self) -> Executor:
        return entry.make_executor(Chosen(executor="elsewhere"))


@pytest.mark.slow(2)
class TestInline(ExecutorConformance):
    def make(self) -> Executor:
        return InlineExecutor()


class TestExperiment(ExperimentConformance):
    @property
    def module(self):
        return import_module("plugin_experiment")


class TestBaseline(ExperimentConformance):
    module = import_module("experiments.baseline")


def test_a_plugin_executor_is_used():
    executor = entry.make_executor(Chosen(executor="elsewhere"))
    assert type(executor).__name__ == "Elsewhere"
    executor.close()


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("raise ImportError('no such scheduler')", "ImportError: no such scheduler"),
        ("def make(settings): return object()", "the executor lacks machine, check, identify, run, close"),
        ("def make(settings): return 1 / 0", "make raised ZeroDivisionError: division by zero"),
        ("make = 3", "it is a int, and not a function make"),
    ],
)
def test_a_broken_executor_is_named_in_one_line(tmp_path, monkeypatch, module, why):
    monkeypatch.syspath_prepend(
        str(install(tmp_path, "broken_executor", module, "[llmtrack.executors]\nbroken = broken_executor:make\n"))
    )
    monkeypatch.delitem(sys.modules, "broken_executor", raising=False)
    with pytest.raises(ExtensionError, match=why) as caught:
        entry.make_executor(Chosen(executor="broken"))
    assert "executor broken (broken_executor:make of the package broken_executor 1.0)" in str(caught.value)
    assert "\n" not in str(caught.value)
    (result,) = (finding for finding in looked_at() if finding.topic == "executor broken")
    assert (result.state, why in result.text) == ("broken", True)


@pytest.mark.parametrize(("method", "arguments", "expected"), [
    ("machine", (), "machine returned a list, and not a mapping of facts"),
    ("identify", (None,), "identify returned a list, and not a mapping of tags"),
    ("run", ((), print), "run emitted a str, and not an event such as a Measurement or a Failure"),
])  # fmt: skip
def test_an_executor_with_a_wrong_return_type_is_named_in_one_line(monkeypatch, method, arguments, expected):
    def broken(self, *arguments):
        return arguments[1]("event") if method == "run" else []

    monkeypatch.setattr(import_module("plugin_executor").Elsewhere, method, broken, raising=False)
    executor = entry.make_executor(Chosen(executor="elsewhere"))
    with pytest.raises(ExtensionError) as caught:
        getattr(executor, method)(*arguments)
    assert (
        f"executor elsewhere (plugin_executor:make of the package plugin_executor 1.0) cannot be used: {expected}"
        in str(caught.value)
    )
    assert "\n" not in str(caught.value)


def test_an_executor_that_omits_scenarios_is_named(monkeypatch):
    monkeypatch.setattr(
        import_module("plugin_executor").Elsewhere, "run", lambda self, scenarios, emit: None, raising=False
    )
    executor = entry.make_executor(Chosen(executor="elsewhere"))
    with pytest.raises(ExtensionError, match="run emitted neither a Measurement nor a Failure of a, b") as caught:
        executor.run([generating("a"), generating("b")], print)
    assert "executor elsewhere (plugin_executor:make" in str(caught.value)


@pytest.mark.parametrize(("named", "gave", "expected"), [
    ("build", None, "build returned None, and not an Experiment"),
    ("build", [], "build returned a list, and not an Experiment"),
    ("build", ZeroDivisionError("no\nlength"), "build raised ZeroDivisionError: no length"),
    ("build", Experiment("x", "?", (3,)), "build returned an int among its scenarios, and not a Scenario"),
    ("reading", ZeroDivisionError("no\nlength"), "reading raised ZeroDivisionError: no length"),
    ("plots", KeyError("word"), "plots raised KeyError: 'word'"),
    ("reading", "one line", "reading returned a str, and not a list of lines"),
    ("plots", [], "plots returned a list, and not a mapping of names to figures"),
])  # fmt: skip
def test_an_experiment_with_a_wrong_return_type_is_named_in_one_line(named, gave, expected):
    def called(*arguments):
        if isinstance(gave, Exception):
            raise gave
        return gave

    declared = replace(import_module("plugin_experiment").DECLARED, **{named: called})

    def use():
        requested = replace(declared.experiment(declared.config()), plots=declared.plots, reading=declared.reading)
        requested.draw(Runs(), lambda *arguments: [])
        requested.read(Runs())

    with pytest.raises(ExtensionError) as caught:
        use()
    package = "plugin_experiment of the package plugin_experiment 1.0"
    assert f"experiment plugin_words ({package}) cannot be used: {expected}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plugin_experiment_is_found_and_suggested():
    assert named_experiment("plugin_words").DECLARED.question == "Does the word matter?"
    assert named_experiment("baseline").__name__ == "experiments.baseline", "a built-in name is not given away"
    with pytest.raises(UsageError, match="did you mean plugin_words"):
        llmtrack.run("plugin_word")
    with pytest.raises(UsageError, match=r"no experiment 'zoo': there are baseline, .*, suite, plugin_words$"):
        llmtrack.run("zoo")


def test_help_shows_the_parameters_of_a_plugin_experiment():
    for requested in (["plugin_words", "--help"], ["-h", "plugin_words"]):
        shown = CliRunner().invoke(command, ["run", *requested])
        assert shown.exit_code == 0
        assert "--words TEXT,..." in shown.output
        assert "Does the word matter?" in shown.output
    lacking = CliRunner().invoke(command, ["run"])
    assert (lacking.exit_code, "error: name an experiment: there are baseline, " in lacking.output) == (2, True)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("raise RuntimeError('half installed')", "RuntimeError: half installed"),
        ("main = 1", "it is not a module with DECLARED"),
        ("DECLARED = 1", "it is not a module with main"),
        ("DECLARED = 1; main = print", "its DECLARED is an int, and not a Declaration"),
        ("from plugin_experiment import DECLARED; main = 1", "its main is an int, and not command"),
        ("from plugin_experiment import DECLARED, main", "it declares an experiment of another name, plugin_words"),
    ],
)
def test_a_broken_experiment_is_named_in_one_line(tmp_path, monkeypatch, module, why):
    monkeypatch.syspath_prepend(
        str(install(tmp_path, "broken_words", module, "[llmtrack.experiments]\nwords = broken_words\n"))
    )
    monkeypatch.delitem(sys.modules, "broken_words", raising=False)
    with pytest.raises(ExtensionError, match=why) as caught:
        named_experiment("words")
    assert "experiment words (broken_words of the package broken_words 1.0)" in str(caught.value)
    invoked = CliRunner().invoke(command, ["run", "words"])
    assert (invoked.exit_code, invoked.output.count("\n")) == (2, 1)
    (result,) = (finding for finding in looked_at() if finding.topic == "experiment words")
    assert (result.state, why in result.text) == ("broken", True)


def looked_at():
    points = [point for group in doctor._EXTENSIONS for point in doctor.extensions(group)]
    return [doctor._extension(point) for point in points if point.group != doctor.ENGINE_POINTS]


def test_the_doctor_lists_plugins():
    findings = {finding.topic: (finding.state, finding.text) for finding in looked_at()}
    assert findings["experiment plugin_words"] == ("ok", "Does the word matter?")
    assert findings["executor elsewhere"] == ("ok", "plugin_executor:make makes an executor")


class OneAtATime:
    """An engine that takes one row at a time."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, request, on_step):
        if len(request.prompt_ids) > 1:
            raise ScenarioError("this engine takes one row at a time: use batch_size=1", kind="unsupported")
        return self._engine.generate(request, on_step)


@pytest.mark.slow(2)
class TestOneRowAtATime(EngineConformance):
    """The kit excuses an engine that takes one row at a time."""

    def load(self, model: str):
        return OneAtATime(llmtrack.load_engine(model, device="cpu"))
