"""The `llmtrack` command: query and compare tracked runs, send kept ones, examine the installation.

Only parses and prints; everything it does is an importable function. Imports nothing heavy at start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import llmtrack
from llmtrack.errors import LlmtrackError

F = TypeVar("F", bound=Callable[..., Any])

NONE = "none"


class Commands(click.Group):
    """A group that shows a user's errors as one line, with exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LlmtrackError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except BrokenPipeError:
            # The reader of a pipe has seen enough, as `head` does; nothing must be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


def optional(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Read `none` as not given: MLproject parameters cannot be empty."""
    return None if value is None or value.strip().lower() in ("", NONE) else value


def filters(command: F) -> F:
    """Add the options that choose tracked runs."""
    options = [
        click.option("--experiment", callback=optional, help="Name of an llmtrack or MLflow experiment."),
        click.option("--study", callback=optional, help="Id of a study or of its run, or latest."),
        click.option("--model", callback=optional, help="Part of the model's name."),
        click.option("--search", callback=optional, help="A word, or an MLflow filter string."),
        click.option(
            "--tracking-uri",
            callback=optional,
            help="MLflow tracking URI; else MLFLOW_TRACKING_URI, else mlflow.db here.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(llmtrack.__version__, prog_name="llmtrack")
def main() -> None:
    """Measure how to run a causal language model on this machine, tracked in MLflow.

    Experiments run through MLflow: mlflow run . -e baseline --env-manager local
    """


@main.command()
@filters
@click.option(
    "--all/--newest", "every", default=False, help="Every run, or the newest of each scenario (default)."
)
@click.option("--output", callback=optional, help="Folder for table.csv, table.md and table.png.")
def compare(
    experiment: str | None,
    study: str | None,
    model: str | None,
    search: str | None,
    tracking_uri: str | None,
    every: bool,
    output: str | None,
) -> None:
    """Put tracked runs side by side in one table.

    Under `mlflow run` the table is also logged to that run.
    """
    from llmtrack.report.comparison import compare_runs

    compare_runs(
        experiment=experiment,
        study=study,
        model=model,
        search=search,
        tracking_uri=tracking_uri,
        every=every,
        output=Path(output).expanduser() if output else None,
    )


@main.command()
@filters
@click.option("--kind", type=click.Choice(["scenario", "study"]), default="scenario", show_default=True)
@click.option(
    "--status",
    type=click.Choice(["FINISHED", "FAILED", "KILLED", "RUNNING"]),
    help="Only runs in this state.",
)
@click.option(
    "--format", "style", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True
)
def runs(
    experiment: str | None,
    study: str | None,
    model: str | None,
    search: str | None,
    tracking_uri: str | None,
    kind: str,
    status: str | None,
    style: str,
) -> None:
    """List tracked runs, newest first."""
    from llmtrack.report.listing import render_runs
    from llmtrack.tracking.query import runs as query

    found = query(experiment, study, model, kind, search, status, tracking_uri, progress=sys.stderr.isatty())
    click.echo(render_runs(found, style), nl=False)


@main.command()
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def doctor(style: str) -> None:
    """Say what this machine and installation can do, what is missing, and how to get it."""
    from llmtrack.doctor import examine, render

    findings = examine()
    click.echo(render(findings, style), nl=False)
    if any(finding.state == "broken" for finding in findings):
        sys.exit(1)


@main.command()
@click.option(
    "--tracking-uri", callback=optional, help="Send everything there instead of where it was meant to go."
)
@click.option("--spool", type=click.Path(path_type=Path, file_okay=False), help="Folder of the kept records.")
def sync(tracking_uri: str | None, spool: Path | None) -> None:
    """Send measurements that were kept while the tracking server could not be reached."""
    from llmtrack.tracking.sync import sync as send

    result = send(spool, tracking_uri)
    click.echo(f"{result.sent} sent, {result.left} still kept")
    for problem in result.problems:
        click.echo(problem, err=True)
    if result.left:
        sys.exit(1)


if __name__ == "__main__":
    main()
