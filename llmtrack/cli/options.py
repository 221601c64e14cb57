"""Shared parts of the `llmtrack` commands: error handling, value parsers, and common options."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from llmtrack.errors import UsageError, actionable, refused_by_system
from llmtrack.host.console import make_folder, on_one_line, print_text, replace_unencodable, write_neutral
from llmtrack.spec.parameter import NONE, readable

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "csv", "json", "markdown", "html", "latex")
SELECTORS = "a run id (or its first 8 characters), study:ID, latest, latest:EXPERIMENT, alias:NAME, branch:NAME or tag:KEY=VALUE, each also with #SCENARIO"


class Commands(click.Group):
    """A group that prints user errors as one line, with exit code 2."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Parse the command line and run a command."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno is None:
                raise
            print_text(f"error: {refused_by_system(error)}", err=True)
            _discard_output()
            sys.exit(2)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        try:
            return super().parse_args(ctx, [readable(arg) for arg in args])
        except UsageError as error:
            print_text(f"error: {error}", err=True)
            ctx.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        from llmtrack.host.signals import Terminated, end_on_signal

        replace_unencodable(sys.stdout)
        try:
            # Ending immediately on a signal would leave temporary files.
            with end_on_signal():
                try:
                    return super().invoke(ctx)
                finally:
                    # Flush now: an error at interpreter exit could not be handled.
                    if sys.stdout is not None:
                        sys.stdout.flush()
        except KeyboardInterrupt:
            print_text("interrupted", err=True)
            ctx.exit(128 + signal.SIGINT)
        except Terminated as ended:
            print_text("terminated", err=True)
            ctx.exit(128 + ended.number)
        except BrokenPipeError:
            # The reader closed the pipe, as `head` does; nothing must be written at exit either.
            _discard_output()
            ctx.exit(0)
        except click.ClickException:
            raise
        except Exception as error:
            reason = actionable(error)
            if reason is None:
                raise
            print_text(f"error: {on_one_line(reason)}", err=True)
            ctx.exit(2)


def _discard_output() -> None:
    """Discard buffered output that cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def optional(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Parse `none` as None, because MLproject parameters cannot be empty."""
    return None if value is None or value.strip().lower() in ("", NONE) else value


def optional_study(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Parse `none` as None; refuse an empty text, such as an unset variable of a shell."""
    if value is not None and not value.strip():
        from llmtrack.tracking.read.query import split_scenario

        split_scenario(value)
    return optional(ctx, param, value)


def comma_list(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names."""
    text = optional(ctx, param, value)
    return None if text is None else tuple(filter(None, (name.strip() for name in text.split(","))))


def key_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read `KEY=VALUE` pairs."""
    pairs: dict[str, str] = {}
    for key, sign, value in (value.partition("=") for value in values):
        if not sign or not key:
            raise click.BadParameter("write KEY=VALUE", ctx, param)
        if key in pairs:
            raise click.BadParameter(f"{key} is given twice", ctx, param)
        pairs[key] = value
    return pairs


def layout(*styles: str, sort: bool = False) -> Callable[[F], F]:
    """Add the options of a table's layout to a command, which gets them as `shown`."""
    options = [
        click.option("--format", "style", type=click.Choice(styles or FORMATS), default="table", show_default=True),
        click.option("--columns", callback=comma_list, help="Only these columns, comma-separated."),
        click.option("--wide", is_flag=True, help="Keep all columns of the table, even if the terminal is too narrow."),
    ]
    if sort:
        options.append(click.option("--sort", callback=optional, help="Column to sort by; -COLUMN from high to low."))

    def add(command: F) -> F:
        @functools.wraps(command)
        def with_layout(
            *args: Any,
            style: str,
            columns: tuple[str, ...] | None,
            wide: bool,
            sort: str | None = None,
            **arguments: Any,
        ) -> Any:
            from llmtrack.report.show import Layout

            return command(*args, shown=Layout(style, sort, columns, wide), **arguments)

        for option in reversed(options):
            with_layout = option(with_layout)
        return cast("F", with_layout)

    return add


tracking_uri_option = click.option(
    "--tracking-uri",
    callback=optional,
    help="MLflow tracking URI; else MLFLOW_TRACKING_URI, else mlflow.db here.",
)
"""Option for the store."""


def write_text(path: Path, text: str) -> None:
    """Write a file named by the user.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        make_folder(path.parent)
        write_neutral(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def filters(command: F) -> F:
    """Add the options that select tracked runs."""
    options = [
        click.option("--experiment", callback=optional, help="Name of an llmtrack or MLflow experiment."),
        click.option(
            "--study",
            callback=optional_study,
            help="Id of a study, suite or its run; latest, latest:EXPERIMENT or alias:NAME; each also with #SCENARIO.",
        ),
        click.option("--model", callback=optional, help="Part of the model's name."),
        click.option("--search", callback=optional, help="A word, or an MLflow filter string."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            callback=key_values,
            metavar="KEY=VALUE",
            help="A tag that the runs must have.",
        ),
        click.option("--since", callback=optional, help="Started then or later: 2026-11-28, or 7d for a week ago."),
        click.option("--until", callback=optional, help="Started before then."),
        tracking_uri_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command
