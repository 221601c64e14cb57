"""MLproject and the commands agree on parameters, options and defaults."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from docs.project import mlproject, quantization, readme, typed
from experiments import batching, suite
from llmtrack.cli import main as llmtrack_command
from llmtrack.spec.options import parameters

ROOT = Path(__file__).resolve().parents[2]
PROJECT = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
ENTRY_POINTS = PROJECT["entry_points"]

# `mlflow run` itself decides where runs go.
NOT_PARAMETERS = {"tracking_uri", "experiment_name"}


def words(name: str) -> list[str]:
    return shlex.split(ENTRY_POINTS[name]["command"])


def command_of(name: str) -> click.Command:
    python, dash_m, module, *rest = words(name)
    assert (python, dash_m) == ("python", "-m")
    if module == "llmtrack":
        return llmtrack_command.commands[rest[0]]
    return importlib.import_module(module).main


def options_of(name: str) -> dict[str, click.Parameter]:
    """Return the options of the command by their names on the command line, with `_` for `-`."""
    return {
        option.removeprefix("--").replace("-", "_"): parameter
        for parameter in command_of(name).params
        for option in parameter.opts
        if option.startswith("--")
    }


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_command_line_uses_exactly_the_parameters(name):
    used = re.findall(r"\{(\w+)\}", ENTRY_POINTS[name]["command"])
    assert sorted(used) == sorted(ENTRY_POINTS[name]["parameters"])


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_each_parameter_is_passed_unquoted_to_the_option_of_its_name(name):
    line = words(name)
    pairs = dict(itertools.pairwise(line))
    for parameter in ENTRY_POINTS[name]["parameters"]:
        assert pairs["--" + parameter.replace("_", "-")] == f"{{{parameter}}}"
        assert parameter in options_of(name)
    command = ENTRY_POINTS[name]["command"]
    assert not re.search(r"""['"]\{|\}['"]""", command), "MLflow quotes safely; other quotes can be broken out of"


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_defaults_are_those_of_the_command(name):
    options = options_of(name)
    for parameter, declared in ENTRY_POINTS[name]["parameters"].items():
        default = options[parameter].default
        # Only a command without any default may be given MLflow's word for nothing.
        expected = "none" if not isinstance(default, (str, int, float, bool)) else str(default)
        expected = expected.lower() if isinstance(default, bool) else expected
        assert declared == {"type": "string", "default": expected}, parameter


@pytest.mark.parametrize("name", [name for name in ENTRY_POINTS if name != "compare"])
def test_every_option_of_an_experiment_is_a_parameter(name):
    declared = set(ENTRY_POINTS[name]["parameters"])
    assert set(options_of(name)) - {"help"} - NOT_PARAMETERS == declared


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_defaults_are_accepted_by_the_command(name):
    """As MLflow calls it without parameters."""
    values = {key: parameter["default"] for key, parameter in ENTRY_POINTS[name]["parameters"].items()}
    line = shlex.split(ENTRY_POINTS[name]["command"].format(**{k: shlex.quote(v) for k, v in values.items()}))
    arguments = line[4:] if line[2] == "llmtrack" else line[3:]
    command = command_of(name)
    # A command keeps the help option of its first context, so it gets the one that it has in use.
    parent = click.Context(llmtrack_command, **llmtrack_command.context_settings)
    context = command.make_context(name, arguments, parent=parent if line[2] == "llmtrack" else None)
    assert set(context.params) >= {options_of(name)[key].name for key in values}


def test_every_experiment_is_an_entry_point():
    files = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"__init__", "prompts"}
    assert files | {"compare"} == set(ENTRY_POINTS)


def test_the_environment_file_exists():
    assert (ROOT / PROJECT["conda_env"]).is_file()


def test_mlproject_matches_the_configs():
    assert (ROOT / "MLproject").read_text(encoding="utf-8") == mlproject(), "run: make docs"


def test_readme_lists_every_experiment_with_its_question():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == readme(text), "run: make docs"
    for name in suite.NAMES:
        assert f"| `{name}` | {suite.DECLARED_BY_NAME[name].question}" in text


def test_the_page_of_recipes_lists_each_with_what_it_quantizes_and_its_options():
    text = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    assert text == quantization(text), "run: make docs"
    assert "| `onnx/int8-static` | weights and activations of linear layers, 8 bits, activation ranges fixed by" in text
    assert "`calibration_method=minmax`" in text


def test_the_type_stub_matches_the_experiments():
    text = (ROOT / "llmtrack" / "run" / "typed.pyi").read_text(encoding="utf-8")
    assert text == typed(), "run: make docs"
    assert "    dtypes: Sequence[str] | str = ...,\n" in text
    assert '    executor: Literal["process", "inline"] = ...,\n' in text, "tune takes no cluster"


NOTHING = [
    ("perplexity", ("max_new_tokens", "warmup", "min_repeats", "min_seconds", "max_seconds")),
    ("training", ("max_new_tokens", "warmup", "min_repeats", "min_seconds", "max_seconds")),
    ("quantization", ("backend",)),
]


@pytest.mark.parametrize(("name", "parameter"), [(name, parameter) for name, names in NOTHING for parameter in names])
@pytest.mark.parametrize("spelling", ["--{}", "--{}="])
def test_a_parameter_without_effect_is_refused_in_one_line(name, parameter, spelling, capfd):
    """`mlflow run -P warmup=3` reaches a command that does not declare it as `--warmup 3`, underscores and all."""
    assert parameter not in ENTRY_POINTS[name]["parameters"]
    for word in (parameter, parameter.replace("_", "-")):
        with pytest.raises(SystemExit) as ended:
            command_of(name)(
                [spelling.format(word) + ("3" if "=" in spelling else ""), "3"][: 1 if "=" in spelling else 2]
            )
        assert ended.value.code == 2
        assert capfd.readouterr().err == (
            f"error: {name} takes no {parameter}, which would change nothing here: leave it out\n"
        )


MEANT = [
    ("precision", "dtype", "bfloat16", "dtypes=bfloat16"),
    ("batching", "size", "3", "sizes=3"),
    ("batching", "batch_size", "1,2", "sizes=1,2"),
    ("prompt_length", "prompt_length", "64", "lengths=64"),
    ("baseline", "max_new_token", "8", "max_new_tokens=8"),
    ("suite", "dtypes", "bfloat16", "dtype=bfloat16"),
    ("tune", "objectiv", "tokens_per_sec", "objective=tokens_per_sec"),
]


@pytest.mark.parametrize(("name", "misspelt", "value", "meant"), MEANT)
@pytest.mark.parametrize("joined", [True, False])
def test_a_misspelt_parameter_is_refused_with_the_nearest_name(name, misspelt, value, meant, joined, capfd):
    with pytest.raises(SystemExit) as ended:
        command_of(name)([f"--{misspelt}={value}"] if joined else [f"--{misspelt}", value])
    assert ended.value.code == 2
    assert capfd.readouterr().err == f"error: {name} has no parameter {misspelt}: did you mean {meant}?\n"


def test_an_unknown_parameter_is_refused_with_the_list_of_parameters(capfd):
    with pytest.raises(SystemExit) as ended:
        command_of("batching")(["--zoo", "3"])
    assert ended.value.code == 2
    known = ", ".join(parameter.name for parameter in parameters(batching.Config))
    assert capfd.readouterr().err == f"error: batching has no parameter zoo: it takes {known}\n"
