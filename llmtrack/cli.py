"""The `llmtrack` command: query and compare tracked runs, send kept ones, examine the installation.

Only parses and prints; everything it does is an importable function. Imports nothing heavy at start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import llmtrack
from llmtrack.command_options import (
    SELECTORS,
    Commands,
    filters,
    key_values,
    layout,
    optional,
    tracking_uri_option,
    write_text,
)
from llmtrack.errors import UsageError
from llmtrack.options import Option, flag_of, read_number
from llmtrack.scenario import Variant
from llmtrack.task import GenerateTask
from llmtrack.tracking.ask import STATUSES

if TYPE_CHECKING:
    import pandas as pd

    from llmtrack.report.show import Layout


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
@click.option(
    "--baseline",
    multiple=True,
    metavar="SELECTOR",
    help=f"Tell differences from noise against this: {SELECTORS}.",
)
@click.option(
    "--candidate",
    multiple=True,
    metavar="SELECTOR",
    help="What is compared with --baseline; else the newest study, or --study.",
)
@click.option("--metric", multiple=True, help="Compare this metric with --baseline; else the headline ones.")
@click.option(
    "--across-environments", is_flag=True, help="Compare speed and memory of different machines or versions."
)
@layout(sort=True)
def compare(
    every: bool,
    output: str | None,
    baseline: tuple[str, ...],
    candidate: tuple[str, ...],
    metric: tuple[str, ...],
    across_environments: bool,
    shown: Layout,
    **chosen: Any,
) -> None:
    """Put tracked runs side by side in one table, or against a baseline with what is noise told.

    Under `mlflow run` the table is also logged to that run.
    """
    from llmtrack.decide.selectors import as_selector
    from llmtrack.report.comparison import compare_runs, compare_with_baseline

    if baseline:
        others = ("model", "search", "tags", "since", "until")
        if every or output or any(chosen[name] for name in others):
            raise UsageError("with --baseline, choose runs by --candidate, --study and --experiment only")
        compare_with_baseline(
            baseline,
            candidate or (as_selector(chosen["study"] or "latest"),),
            metric or None,
            experiment=chosen["experiment"],
            across_environments=across_environments,
            layout=shown,
            tracking_uri=chosen["tracking_uri"],
        )
        return
    if candidate or metric or across_environments:
        raise UsageError("--candidate, --metric and --across-environments need a --baseline")
    compare_runs(
        every=every,
        output=Path(os.path.expanduser(output)) if output else None,
        layout=shown,
        progress=sys.stderr.isatty(),
        **chosen,
    )


@main.command()
@filters
@click.option("--kind", type=click.Choice(["scenario", "study"]), default="scenario", show_default=True)
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="Only runs in this state.",
)
@layout("table", "csv", "json")
def runs(kind: str, status: str | None, shown: Layout, **chosen: Any) -> None:
    """List tracked runs, newest first."""
    from llmtrack.report.listing import show_runs

    show_runs(_found(kind=kind, status=status, columns=shown.columns, **chosen), shown)


@main.command()
@click.option(
    "--baseline", required=True, multiple=True, metavar="SELECTOR", help=f"What to measure by: {SELECTORS}."
)
@click.option(
    "--candidate", required=True, multiple=True, metavar="SELECTOR", help="What is checked; like --baseline."
)
@click.option(
    "--fail-if",
    required=True,
    multiple=True,
    metavar="RULE",
    help="A change that breaks the gate, such as 'tokens_per_sec < -5%'; may be given several times.",
)
@click.option("--experiment", callback=optional, help="Only runs of this llmtrack or MLflow experiment.")
@click.option(
    "--across-environments", is_flag=True, help="Compare speed and memory of different machines or versions."
)
@click.option("--strict", is_flag=True, help="Fail also where the samples cannot tell.")
@click.option(
    "--allow-missing", is_flag=True, help="Accept that a side has no figure, or one that is not a number."
)
@click.option(
    "--alpha",
    callback=lambda ctx, param, value: read_number("alpha", value, Option("", above=0, below=1)),
    default="0.05",
    metavar="FLOAT",
    show_default=True,
    help="Chance of a false alarm that is accepted, over all rules and scenarios together: more than 0 and less than 1.",
)
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML to this file."
)
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

    Of each rule and scenario it says whether it is broken, kept, missing, or cannot be told from noise.
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
            click.echo(note, err=True)
    # A gate that could not check everything is a mistake to mend, and said where mistakes are.
    told, mistaken = gate_summary(result), result.exit_code == NOT_CHECKED
    click.echo(f"error: {told}" if mistaken else told, err=mistaken or shown.style in ("csv", "json"))
    sys.exit(result.exit_code)


@main.command()
@filters
@click.option("--speed", default="tokens_per_sec", show_default=True, help="Metric of speed.")
@click.option("--quality", default="perplexity", show_default=True, help="Metric of quality.")
@click.option("--memory/--no-memory", default=False, help="Let peak memory count too.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Draw the front to this PNG.")
@layout()
def pareto(speed: str, quality: str, memory: bool, output: Path | None, shown: Layout, **chosen: Any) -> None:
    """Say which scenarios no other one beats in speed and quality (and memory).

    Speed and quality may be of one run, or of two of the same model, backend, dtype and quantization.
    """
    from llmtrack.decide.verdicts import with_samples
    from llmtrack.report.pareto import show_pareto

    runs = with_samples(_found(**chosen), chosen["tracking_uri"])
    show_pareto(runs, speed, quality, memory=memory, layout=shown, output=output)


@main.command()
@filters
@click.option(
    "--max-perplexity-increase", callback=optional, help="Against the baseline's, such as 1%; else any."
)
@click.option("--max-memory", callback=optional, help="Peak memory at most, such as 2GiB; else any.")
@click.option("--objective", default="tokens_per_sec", show_default=True, help="Metric to be best in.")
@click.option(
    "--baseline",
    callback=optional,
    metavar="SCENARIO",
    help="Whose perplexity counts; else the tracked baseline.",
)
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def recommend(
    max_perplexity_increase: str | None,
    max_memory: str | None,
    objective: str,
    baseline: str | None,
    style: str,
    **chosen: Any,
) -> None:
    """Say in a sentence how to run the model under constraints, and what ruled the others out.

    Exit code 1 if nothing fits, or if it cannot be told which is best: then it says how to measure more.
    """
    from llmtrack.decide.recommending import Limits, parse_percent, parse_size
    from llmtrack.decide.recommending import recommend as choose
    from llmtrack.decide.verdicts import with_samples
    from llmtrack.report.terminal import make_console, render_recommendation, width_of

    limits = Limits(
        None if max_perplexity_increase is None else parse_percent(max_perplexity_increase),
        None if max_memory is None else parse_size(max_memory),
    )
    runs = with_samples(_found(**chosen), chosen["tracking_uri"])
    found = choose(runs, limits, objective, baseline)
    click.echo(render_recommendation(found, style, width_of(make_console())), nl=False)
    if found.scenario is None:
        sys.exit(1)
    if style == "table":
        from llmtrack.run.how import how_to_run

        if lines := how_to_run(runs[runs["run_id"] == found.run_id].iloc[0]):
            click.echo("\n".join(["To run it that way:", *(f"  {line}".rstrip() for line in lines)]))


def _found(**chosen: Any) -> pd.DataFrame:
    from llmtrack.tracking.query import runs

    return runs(progress=sys.stderr.isatty(), **chosen)


@main.command()
@click.argument("prompts", nargs=-1, required=True, metavar="PROMPT...")
@click.option("--model", default=Variant.model, show_default=True, help="Model, or comma list of candidates.")
@click.option("--revision", callback=optional, help="Revision of a hub model.")
@click.option("--backend", default=Variant.backend, show_default=True, help="Engine.")
@click.option("--device", default=Variant.device, show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--dtype", default=Variant.dtype, show_default=True, help="Precision.")
@click.option("--quantization", default=Variant.quantization, show_default=True, help="Recipe, or none.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    help="What else the backend and the recipe take, such as threads=2; may be repeated.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=GenerateTask.max_new_tokens,
    show_default=True,
    help="New tokens at most.",
)
@click.option("--no-cache", is_flag=True, help="Compute without the KV cache.")
@click.option("--chat", is_flag=True, help="PROMPT is a message, put to the model by its chat template.")
@click.option(
    "--pad-to-multiple",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Pad to a multiple of so many tokens.",
)
def generate(
    prompts: tuple[str, ...],
    max_new_tokens: int,
    no_cache: bool,
    chat: bool,
    pad_to_multiple: int,
    options: dict[str, str],
    **asked: Any,
) -> None:
    """Say what a model goes on with after PROMPT, run the way that `tune` or `recommend` has named; several make one batch."""
    if twice := sorted(options.keys() & asked.keys()):
        raise UsageError(f"--option {twice[0]}=... is an option of its own: use {flag_of(twice[0])}")
    from llmtrack.engines.registry import load_engine
    from llmtrack.engines.text import generate_texts

    engine = load_engine(**asked, **options)
    try:
        put = [[{"role": "user", "content": each}] if chat else each for each in prompts]
        click.echo("\n".join(generate_texts(engine, put, max_new_tokens, not no_cache, pad_to_multiple)))
    finally:
        engine.close()


@main.command()
@click.argument("study")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write the report's files to, too.",
)
@tracking_uri_option
def report(study: str, output: Path | None, tracking_uri: str | None) -> None:
    """Make the report of a study or suite again from its tracked runs, and keep it with its run.

    STUDY is its id, the id of its run, latest, latest:EXPERIMENT or alias:NAME. For where the report failed, or the server was away until
    `llmtrack sync`. Exit code 1 if a part of it cannot be made.
    """
    from llmtrack.report.remake import remake_report
    from llmtrack.report.terminal import make_console

    if not study.strip():
        raise UsageError("STUDY is empty: give its id, the id of its run, latest or latest:EXPERIMENT")
    problems = remake_report(study, make_console(), tracking_uri, output)
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)
    if problems:
        sys.exit(1)


@main.command()
@click.argument("name")
@click.argument("selector")
@tracking_uri_option
def alias(name: str, selector: str, tracking_uri: str | None) -> None:
    """Give a run the alias NAME, such as production; within its experiment, the run that had it loses it.

    SELECTOR names the run of a scenario, or of a study for all its scenarios: its id (or the first 8 characters), latest,
    latest:EXPERIMENT, study:ID, each also with #SCENARIO. Elsewhere it is named alias:NAME.
    """
    from llmtrack.decide.selectors import run_named
    from llmtrack.tracking.aliases import set_alias

    run_id = run_named(selector, tracking_uri)
    before = set_alias(name, run_id, tracking_uri)
    moved = f" (before: {before})" if before is not None and not before.startswith(run_id) else ""
    click.echo(f"alias:{name} is {run_id}{moved}")


@main.command()
@click.argument("experiment")
@click.option(
    "-P",
    "parameters",
    multiple=True,
    callback=key_values,
    metavar="NAME=VALUE",
    help="A parameter, as `mlflow run -P` takes it; docs/commands.md lists them.",
)
def run(experiment: str, parameters: dict[str, str]) -> None:
    """Run EXPERIMENT (baseline, precision, suite ...), from a checkout or an installed package, in any folder."""
    from llmtrack.modules import named_experiment
    from llmtrack.run.notebook import near_names

    command = getattr(named_experiment(experiment), "main", None)
    if command is None:
        raise UsageError(f"there is no experiment {experiment!r}{near_names(experiment)}")
    command.main([f"{flag_of(name)}={value}" for name, value in parameters.items()], prog_name=experiment)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Write a folder that `mlflow run` takes: MLproject, conda.yaml and an example corpus."""
    from llmtrack.starting import write_project

    written = write_project(Path(os.path.expanduser(folder)))
    click.echo(f"Written: {', '.join(map(str, written))}")
    click.echo(f"Next: mlflow run {folder} -e baseline --env-manager local")


@main.command()
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--repair", is_flag=True, help="End, as killed, runs that killed processes of this machine left RUNNING."
)
@click.option("--tracking-uri", callback=optional, help="Store to repair.")
def doctor(style: str, repair: bool, tracking_uri: str | None) -> None:
    """Say what this machine and installation can do, what is missing, and how to get it."""
    if repair:
        if style != "table":
            raise UsageError("--repair prints one line: leave --format out")
        from llmtrack.tracking.abandoned import close_abandoned
        from llmtrack.words import plural

        closed = close_abandoned(tracking_uri)
        click.echo(f"{plural(len(closed), 'run')} ended as killed{': ' if closed else ''}{', '.join(closed)}")
        return
    if tracking_uri is not None:
        raise UsageError(
            "--tracking-uri says which store to repair: add --repair, or set MLFLOW_TRACKING_URI to examine it"
        )
    from llmtrack.doctor import examine, render_findings
    from llmtrack.report.terminal import make_console, width_of

    findings = examine()
    click.echo(render_findings(findings, style, width_of(make_console())), nl=False)
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
