"""Make MLproject, README's table of experiments and that of recipes from what declares them: python -m docs.project."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from experiments import declarations, suite
from llmtrack.cli import main as llmtrack_command
from llmtrack.quantize.recipe import BUILTIN
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import NONE, Parameter, flag_of, format_value

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by `make docs`: {} -->\n", "<!-- end -->\n"
HEAD = """# Made by `make docs` from the experiments' configs; a test keeps the two equal. Parameters reach the commands as
# strings, and the commands check them. `none` means "not given", since MLflow cannot pass an empty one.
name: llmtrack

conda_env: conda.yaml

entry_points:
"""
# Set by `mlflow run` itself.
NOT_PARAMETERS = ("tracking_uri", "experiment_name")
# Parameters of `llmtrack compare` as an entry point.
COMPARE = ("experiment", "study", "model", "search", "output")


def mlproject() -> str:
    """Return the text of MLproject."""
    entries = [_experiment(name) for name in (*declarations(), "suite")]
    known = {parameter.name for parameter in llmtrack_command.commands["compare"].params}
    assert known.issuperset(COMPARE)
    entries.append(_entry("compare", "llmtrack compare", [(name, NONE) for name in COMPARE]))
    return HEAD + "\n".join(entries)


def readme(text: str) -> str:
    """Update the table of experiments in README's text."""
    return _filled(text, "experiments", _experiments())


def quantization(text: str) -> str:
    """Update the table of recipes in the text of docs/quantization.md."""
    return _filled(text, "recipes", _recipes())


def _filled(text: str, what: str, rows: Iterable[str]) -> str:
    begin = BEGIN.format(what)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    return before + begin + "".join(rows) + END + after


def _experiment(name: str) -> str:
    command = importlib.import_module(f"experiments.{name}").main
    own = [each for each in parameters(command.config) if each.name not in NOT_PARAMETERS]
    return _entry(name, f"experiments.{name}", [(each.name, format_value(each.default)) for each in own])


def _entry(name: str, module: str, given: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {name}:", "    parameters:"]
    lines += [f"      {key}: {{type: string, default: {json.dumps(default)}}}" for key, default in given]
    command = " ".join([f"python -m {module}", *(f"{flag_of(key)}\0{{{key}}}" for key, _ in given)])
    wrapped = textwrap.wrap(command, 104, break_on_hyphens=False, break_long_words=False)
    return "\n".join([*lines, "    command: >-", *(f"      {line}".replace("\0", " ") for line in wrapped)]) + "\n"


def _recipes() -> Iterator[str]:
    yield "| recipe | what is quantized | can be told, by default | needs |\n| --- | --- | --- | --- |\n"
    for each in (each for module in BUILTIN for each in importlib.import_module(module).RECIPES):
        told = (
            f"`{one.name}={format_value(one.default)}`" for config in each.option_types for one in parameters(config)
        )
        needs = ["`torchao`" if each.backend == "torch" else f"`{each.backend}`"]
        needs += [f"a GPU of compute capability {each.capability[0]}.{each.capability[1]}"] if each.capability else []
        yield f"| `{each.label}` | {each.quantizes} | {', '.join(told)} | {', '.join(needs)} |\n"


def _experiments() -> Iterator[str]:
    yield "| entry point | question |\n| --- | --- |\n"
    for each in declarations().values():
        yield f"| `{each.name}` | {' '.join([each.question, each.more]).strip()} |\n"
    yield f"| `suite` | {suite.QUESTION} {suite.MORE} |\n"
    yield "| `compare` | The table of what has been tracked so far. |\n"


TYPED = '''# Made by `make docs` from the experiments' configs; a test keeps the two equal.
"""`llmtrack.run` as type checkers and editors know it: each experiment with its parameters."""

from collections.abc import Sequence
from typing import Literal, overload

from rich.console import Console

from llmtrack.run.notebook import Finished
'''


def typed() -> str:
    """Return the text of llmtrack/run/typed.pyi."""
    return TYPED + "".join(_overload(name) for name in (*declarations(), "suite"))


def _overload(name: str) -> str:
    module = importlib.import_module(f"experiments.{name}")
    question = suite.QUESTION if name == "suite" else module.DECLARED.question
    own = parameters(module.main.config)
    given = "".join(f"    {each.name}: {_type(each)} = ...,\n" for each in own)
    told = "".join(f"        {each.name}: {each.option.help}\n" for each in own)
    return (
        f'\n@overload\ndef run(\n    experiment: Literal["{name}"],\n    *,\n    console: Console | None = ...,\n'
        f"    quiet: bool = ...,\n{given}) -> Finished:\n"
        f'    """{question}\n\n    Args:\n{told}    """\n'
    )


def _type(parameter: Parameter) -> str:
    option, kind = parameter.option, parameter.kind.__name__
    if option.choices and not parameter.many:
        kind = f"Literal[{', '.join(json.dumps(each) for each in option.choices)}]"
    if parameter.many:
        kind = f"Sequence[{kind}] | {kind}" + ("" if kind == "str" else " | str")
    return f"{kind} | None" if parameter.optional else kind


if __name__ == "__main__":
    (ROOT / "llmtrack" / "run" / "typed.pyi").write_text(typed(), encoding="utf-8")
    (ROOT / "MLproject").write_text(mlproject(), encoding="utf-8")
    for name, made in (("README.md", readme), ("docs/quantization.md", quantization)):
        page = ROOT / name
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
