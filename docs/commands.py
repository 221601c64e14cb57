"""Generate docs/commands.md from the commands' own help: python -m docs.commands > docs/commands.md."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy

import click

import experiments
from llmtrack.cli import main as llmtrack_command

WIDTH = 100

HEAD = """# Commands

Generated from the commands' own `--help` by `make docs`; a test keeps the two equal. Under `mlflow run`, the option
`--max-new-tokens 8` of an experiment is the parameter `-P max_new_tokens=8`.
"""
COMMON = """### Common options

Each experiment below also takes these, except those named after its own.
"""
# An option with the same help in this share of the experiments is listed once.
SHARE = 0.6


def page() -> str:
    """Generate the text of docs/commands.md."""
    named = list(_experiments())
    common = _common_options([command for _, command in named])
    parts = [HEAD, "## llmtrack\n", *_sections("llmtrack", llmtrack_command), "## Experiments\n", COMMON]
    shared = click.Command("experiment", params=list(common.values()), add_help_option=False)
    _, _, listed = _help(click.Context(shared, terminal_width=WIDTH)).partition("Options:\n")
    parts.append(_block("Options:\n" + listed))
    for name, command in named:
        own = [option for option in command.params if _record(option) not in common]
        parts += _sections(f"python -m experiments.{name}", command, own)
        flags = {option.opts[0] for option in command.params}
        missing = sorted(option.opts[0] for option in common.values() if option.opts[0] not in flags)
        if missing:
            parts.append(f"Without the common options {', '.join(f'`{flag}`' for flag in missing)}.\n")
    return "\n".join(parts)


def _experiments() -> Iterator[tuple[str, click.Command]]:
    for module in pkgutil.iter_modules(experiments.__path__):
        command = getattr(importlib.import_module(f"experiments.{module.name}"), "main", None)
        if isinstance(command, click.Command):
            yield module.name, command


def _record(option: click.Parameter) -> tuple[str, str]:
    """Return the help record of an option."""
    return option.get_help_record(click.Context(click.Command(""))) or ("", "")


def _common_options(commands: Sequence[click.Command]) -> dict[tuple[str, str], click.Parameter]:
    """Return the options that most commands share, by their help records."""
    options = {_record(option): option for command in commands for option in command.params}
    counts = Counter(record for command in commands for record in set(map(_record, command.params)))
    return {record: option for record, option in options.items() if counts[record] >= SHARE * len(commands)}


def _sections(
    name: str,
    command: click.Command,
    options: Sequence[click.Parameter] | None = None,
    parent: click.Context | None = None,
) -> Iterator[str]:
    """Yield the help of a command, with all its options or some of them, and of its subcommands."""
    shown = copy(command)
    if options is not None:
        shown.params = list(options)
    context = click.Context(shown, parent=parent, info_name=name, terminal_width=WIDTH, **command.context_settings)
    yield f"### {context.command_path}\n\n{_block(_help(context))}"
    if isinstance(command, click.Group):
        for subcommand in sorted(command.commands):
            yield from _sections(subcommand, command.commands[subcommand], parent=context)


def _help(context: click.Context) -> str:
    return "\n".join(line.rstrip() for line in context.command.get_help(context).splitlines())


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
