"""Make docs/commands.md from the commands' own help: python -m docs.commands > docs/commands.md."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import click

import experiments
from llmtrack.cli import main as llmtrack_command

WIDTH = 100

HEAD = """# Commands

Made from the commands' own `--help` by `make docs`; a test keeps the two equal. Under `mlflow run` an option
`--max-new-tokens 8` of an experiment is the parameter `-P max_new_tokens=8`.
"""


def page() -> str:
    """Return the text of docs/commands.md."""
    parts = [HEAD, "## llmtrack\n", *_sections("llmtrack", llmtrack_command), "## Experiments\n"]
    for name, command in _experiments():
        parts += _sections(f"python -m experiments.{name}", command)
    return "\n".join(parts)


def _experiments() -> Iterator[tuple[str, click.Command]]:
    for module in pkgutil.iter_modules(experiments.__path__):
        command = getattr(importlib.import_module(f"experiments.{module.name}"), "main", None)
        if isinstance(command, click.Command):
            yield module.name, command


def _sections(name: str, command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, **command.context_settings
    )
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"### {context.command_path}\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for each in sorted(command.commands):
            yield from _sections(each, command.commands[each], context)


if __name__ == "__main__":
    print(page(), end="")
