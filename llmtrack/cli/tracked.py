"""The `llmtrack` commands that list, compare, check and choose among tracked runs.

Only parse and print; everything they do is an importable function. Imports nothing heavy at start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmtrack.cli.options import SELECTORS, filters, layout, optional, tracking_uri_option, write_text
from llmtrack.errors import UsageError
from llmtrack.host.console import print_text
from llmtrack.spec.parameter import CHANCE, read_number
from llmtrack.tracked.run import STATUSES

if TYPE_CHECKING:
    from llmtrack.report.show import Layout
    from llmtrack.tracked.runs import Runs


_across_environments = click.option(
    "--across-environments", is_flag=True, help="Compare speed and memory of different machines or versions."
)


@click.command()
@filters
@click.option("--all/--newest", "every", default=False, help="Every run, or the newest of each scenario (default).")
@click.option("--output", callback=optional, help="Folder for table.csv, table.md and table.png.")
@click.option(
    "--baseline",
    multiple=True,
    metavar="SELECTOR",
    help=f"Compare with this, separating differences from noise: {SELECTORS}.",
)
@click.option(
    "--candidate",
    multiple=True,
    metavar="SELECTOR",
    help="What to compare with --baseline; else the newest study, or --study.",
)
@click.option("--metric", multiple=True, help="Compare this metric with --baseline; else the headline ones.")
@_across_environments
@click.option("--warnings", is_flag=True, help="List the warnings of each run below the table.")
@layout(sort=True)
def compare(
    every: bool,
    warnings: bool,
    output: str | None,
    baseline: tuple[str, ...],
    candidate: tuple[str, ...],
    metric: tuple[str, ...],
    across_environments: bool,
    shown: Layout,
    **chosen: Any,
) -> None:
    """Show tracked runs side by side in one table, or compare them with a baseline.

    Under `mlflow run` the table is also logged to that run.
    """
    from llmtrack.decide.selection import as_selector
    from llmtrack.report.comparison import show_differences, show_side_by_side

    if baseline:
        others = ("model", "search", "tags", "since", "until")
        if every or output or warnings or any(chosen[name] for name in others):
            raise UsageError("with --baseline, choose runs by --candidate, --study and --experiment only")
        latest = None if candidate or chosen["study"] else _latest(chosen["tracking_uri"], chosen["experiment"])
        show_differences(
            baseline,
            candidate or (as_selector(chosen["study"] or "latest"),),
            metric or None,
            experiment=chosen["experiment"],
            across_environments=across_environments,
            layout=shown,
            tracking_uri=chosen["tracking_uri"],
        )
        _print_latest(latest)
        return
    if candidate or metric or across_environments:
        raise UsageError("--candidate, --metric and --across-environments need a --baseline")
    chosen, latest = (chosen, None) if every else _latest_unless_chosen(chosen)
    show_side_by_side(
        every=every,
        warnings=warnings,
        output=Path(os.path.expanduser(output)) if output else None,
        layout=shown,
        progress=sys.stderr.isatty(),
        **chosen,
    )
    _print_latest(latest)


@click.command()
@filters
@click.option("--kind", type=click.Choice(["scenario", "study"]), default="scenario", show_default=True)
@click.option("--status", type=click.Choice(STATUSES), help="Only runs in this state.")
@layout("table", "csv", "json")
def runs(kind: str, status: str | None, shown: Layout, **chosen: Any) -> None:
    """List tracked runs, newest first."""
    from llmtrack.report.show import show_runs

    show_runs(_select_runs(kind=kind, status=status, **chosen), shown)


@click.command()
@click.option(
    "--baseline", required=True, multiple=True, metavar="SELECTOR", help=f"Runs to compare with: {SELECTORS}."
)
@click.option("--candidate", required=True, multiple=True, metavar="SELECTOR", help="Runs to check; like --baseline.")
@click.option(
    "--fail-if",
    required=True,
    multiple=True,
    metavar="RULE",
    help="A change that breaks the gate, such as 'tokens_per_sec < -5%'; may be given several times.",
)
@click.option("--experiment", callback=optional, help="Only runs of this llmtrack or MLflow experiment.")
@_across_environments
@click.option("--strict", is_flag=True, help="Treat inconclusive results as failures.")
@click.option("--allow-missing", is_flag=True, help="Accept a missing or NaN value on one side.")
@click.option(
    "--alpha",
    callback=lambda ctx, param, value: read_number("alpha", value, CHANCE),
    default="0.05",
    metavar="FLOAT",
    show_default=True,
    help="Accepted probability of a false alarm, over all rules and scenarios together: between 0 and 1, exclusive.",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML to this file.")
@layout()
@tracking_uri_option
def gate(
    baseline: tuple[str, ...],
    candidate: tuple[str, ...],
    fail_if: tuple[str, ...],
    experiment: str | None,
    across_environments: bool,
    strict: bool,
    allow_missing: bool,
    alpha: float,
    junit: Path | None,
    shown: Layout,
    tracking_uri: str | None,
) -> None:
    """Check rules for CI: exit code 3 if a tracked run breaks one with significance, 2 if one cannot be checked.

    Each rule is reported as broken, kept, missing or inconclusive for each scenario.
    """
    from llmtrack.decide.gate import NOT_CHECKED
    from llmtrack.decide.gate import gate as check
    from llmtrack.report.gate import gate_summary, gate_table, to_junit
    from llmtrack.report.show import show
    from llmtrack.report.terminal import make_console

    result = check(
        baseline,
        candidate,
        fail_if,
        experiment=experiment,
        across_environments=across_environments,
        strict=strict,
        allow_missing=allow_missing,
        alpha=alpha,
        tracking_uri=tracking_uri,
    )
    if junit is not None:
        write_text(junit, to_junit(result))
    show(make_console(), "", gate_table(result), shown)
    if shown.style in ("csv", "json"):
        for note in result.notes:
            print_text(note, err=True)
    # An incomplete check is an error to fix, so it is printed to standard error.
    summary, incomplete = gate_summary(result), result.exit_code == NOT_CHECKED
    print_text(f"error: {summary}" if incomplete else summary, err=incomplete or shown.style in ("csv", "json"))
    sys.exit(result.exit_code)


@click.command()
@filters
@click.option("--speed", default="tokens_per_sec", show_default=True, help="Metric of speed.")
@click.option("--quality", default="perplexity", show_default=True, help="Metric of quality.")
@click.option("--memory/--no-memory", default=False, help="Include peak memory.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Draw the front to this PNG.")
@layout()
def pareto(speed: str, quality: str, memory: bool, output: Path | None, shown: Layout, **chosen: Any) -> None:
    """Show the scenarios that no other one dominates in speed and quality (and memory).

    Speed and quality may come from one run, or from two of the same model, backend, dtype and quantization.
    """
    from llmtrack.decide.verdicts import with_samples
    from llmtrack.report.pareto import show_pareto

    chosen, latest = _latest_unless_chosen(chosen)
    runs = with_samples(_select_runs(**chosen), chosen["tracking_uri"])
    show_pareto(runs, speed, quality, memory=memory, layout=shown, output=output)
    _print_latest(latest)


@click.command()
@filters
@click.option("--max-perplexity-increase", callback=optional, help="Relative to the baseline, such as 1%; else any.")
@click.option("--max-memory", callback=optional, help="Maximum peak memory, such as 2GiB; else any.")
@click.option("--objective", default="tokens_per_sec", show_default=True, help="Metric to optimize.")
@click.option(
    "--baseline",
    callback=optional,
    metavar="SCENARIO",
    help="Scenario with the reference perplexity; else the tracked baseline.",
)
@click.option("--format", "style", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True)
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw the answer to this PNG.")
def recommend(
    max_perplexity_increase: str | None,
    max_memory: str | None,
    objective: str,
    baseline: str | None,
    style: str,
    picture: Path | None,
    **chosen: Any,
) -> None:
    """Recommend in one sentence how to run the model under constraints, and say why the others are ruled out.

    Exit code 1 if nothing fits, or if the result is inconclusive: then it prints the command to measure more.
    """
    from llmtrack.decide.recommend import Limits, parse_percent, parse_size
    from llmtrack.decide.recommend import recommend as choose
    from llmtrack.decide.verdicts import with_samples
    from llmtrack.report.recommendation import draw, recommendation_json, recommendation_markdown, render_recommendation
    from llmtrack.report.terminal import make_console, width_of
    from llmtrack.run.reproduce import how_to_run

    limits = Limits(
        None if max_perplexity_increase is None else parse_percent(max_perplexity_increase),
        None if max_memory is None else parse_size(max_memory),
    )
    chosen, latest = _latest_unless_chosen(chosen)
    runs = with_samples(_select_runs(**chosen), chosen["tracking_uri"])
    recommendation = choose(runs, limits, objective, baseline)
    commands, settings = how_to_run(runs, recommendation.run_id)
    if style == "table":
        print_text(render_recommendation(recommendation, width_of(make_console())), nl=False)
        if commands:
            print_text("\n".join(["To run it that way:", *(f"  {line}".rstrip() for line in commands)]))
        if settings:
            print_text(f"Measured with {', '.join(settings)}.")
    else:
        render = recommendation_json if style == "json" else recommendation_markdown
        print_text(render(recommendation, commands, settings), nl=False)
    if picture is not None:
        draw(recommendation, runs, objective, picture)
        print_text(f"Written: {picture}", err=True)
    _print_latest(latest)
    if recommendation.scenario is None:
        sys.exit(1)


def _latest_unless_chosen(chosen: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Default to the newest study (or suite) if the user selected nothing."""
    if any(value for name, value in chosen.items() if name != "tracking_uri"):
        return chosen, None
    return {**chosen, "study": "latest"}, _latest(chosen["tracking_uri"])


def _latest(tracking_uri: str | None, experiment: str | None = None) -> str:
    from llmtrack.tracking.read.query import newest_study

    return newest_study(experiment, tracking_uri)


def _print_latest(study: str | None) -> None:
    """Print which study an answer refers to, after the answer, so that an error stays one line."""
    if study is not None:
        print_text(f"latest: {study} (--study chooses another)", err=True)


def _select_runs(**chosen: Any) -> Runs:
    """Return the runs that the filters select; explain an empty result where the reason is known."""
    from llmtrack.tracking.read.query import tracked_runs, why_empty

    runs = tracked_runs(progress=sys.stderr.isatty(), **chosen)
    if not runs and (reason := why_empty(chosen.get("study"), chosen.get("tracking_uri"))):
        raise UsageError(reason)
    return runs


COMMANDS = (compare, runs, gate, pareto, recommend)
