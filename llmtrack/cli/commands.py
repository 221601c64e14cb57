"""The `llmtrack` command: use a model, run experiments, manage their runs, examine the installation.

Only parses and prints; everything it does is an importable function. Imports nothing heavy at start.
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from llmtrack.cli.options import Commands, key_values, optional, tracking_uri_option
from llmtrack.cli.tracked import COMMANDS
from llmtrack.devices import DEVICE_HELP
from llmtrack.errors import UsageError
from llmtrack.host.console import print_text
from llmtrack.spec.parameter import flag_of, unexpected
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.version import __version__
from llmtrack.worker.bytecode import cache_bytecode


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmtrack")
def main() -> None:
    """Measure how to run a causal language model on this machine, tracked in MLflow.

    Run an experiment by `llmtrack run baseline`, or through MLflow: mlflow run . -e baseline --env-manager local
    """
    cache_bytecode()


for command in COMMANDS:
    main.add_command(command)


@main.command()
@click.argument("prompts", nargs=-1, required=True, metavar="PROMPT...")
@click.option("--model", default=Variant.model, show_default=True, help="Model, or comma list of candidates.")
@click.option("--revision", callback=optional, help="Revision of a hub model.")
@click.option("--backend", default=Variant.backend, show_default=True, help="Engine.")
@click.option("--device", default=Variant.device, show_default=True, help=f"{DEVICE_HELP}.")
@click.option("--dtype", default=Variant.dtype, show_default=True, help="Precision.")
@click.option("--quantization", default=Variant.quantization, show_default=True, help="Recipe, or none.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    help="Option of the backend or the recipe, such as threads=2; may be repeated.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=GenerateTask.max_new_tokens,
    show_default=True,
    help="Maximum new tokens.",
)
@click.option("--no-cache", is_flag=True, help="Compute without the KV cache.")
@click.option("--chat", is_flag=True, help="PROMPT is a message, formatted by the model's chat template.")
@click.option(
    "--pad-to-multiple",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Pad to a multiple of this many tokens.",
)
def generate(
    prompts: tuple[str, ...],
    max_new_tokens: int,
    no_cache: bool,
    chat: bool,
    pad_to_multiple: int,
    options: dict[str, str],
    **variant: Any,
) -> None:
    """Continue each PROMPT with a model, run as `tune` or `recommend` suggested; several prompts make one batch."""
    if duplicates := sorted(options.keys() & variant.keys()):
        name = duplicates[0]
        raise UsageError(f"--option {name}=... is an option of its own: use {flag_of(name)}")
    from llmtrack.engines.registry import load_engine
    from llmtrack.engines.text import generate_texts
    from llmtrack.worker.process import quieten

    quieten()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The engine's warnings are printed below.
        engine = load_engine(**variant, **options)
    for warning in engine.info.warnings:
        print_text(f"warning: {warning}", err=True)
    try:
        inputs = [[{"role": "user", "content": prompt}] if chat else prompt for prompt in prompts]
        print_text("\n".join(generate_texts(engine, inputs, max_new_tokens, not no_cache, pad_to_multiple)))
    finally:
        engine.close()


@main.command()
@click.argument("study")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for a copy of the report's files.",
)
@tracking_uri_option
def report(study: str, output: Path | None, tracking_uri: str | None) -> None:
    """Rebuild the report of a study or suite from its tracked runs, and store it with its run.

    STUDY is its id, the id of its run, latest, latest:EXPERIMENT or alias:NAME. Use it if the report failed, or if the
    server was unreachable until `llmtrack sync`. Exit code 1 if a part of it fails.
    """
    from llmtrack.report.page.reports import rebuild_report
    from llmtrack.report.terminal import make_console

    if not study.strip():
        raise UsageError("STUDY is empty: give its id, the id of its run, latest or latest:EXPERIMENT")
    problems = rebuild_report(study, make_console(), tracking_uri, output)
    for problem in problems:
        print_text(f"warning: {problem}", err=True)
    if problems:
        sys.exit(1)


@main.command()
@click.argument("name")
@click.argument("selector")
@tracking_uri_option
def alias(name: str, selector: str, tracking_uri: str | None) -> None:
    """Give a run the alias NAME, such as production; within its experiment, it moves from the run that had it.

    SELECTOR names the run of a scenario, or of a study for all its scenarios: its id (or the first 8 characters),
    latest, latest:EXPERIMENT, study:ID, each also with #SCENARIO. Other commands accept it as alias:NAME.
    """
    from llmtrack.decide.selection import single_run_id
    from llmtrack.tracking.read.lookup import set_alias

    run_id = single_run_id(selector, tracking_uri)
    before = set_alias(name, run_id, tracking_uri)
    moved = f" (before: {before})" if before is not None and not before.startswith(run_id) else ""
    print_text(f"alias:{name} is {run_id}{moved}")


@main.command()
@click.argument("selector")
@click.option("--as", "target", required=True, metavar="NAME@ALIAS", help="Registered model, and alias of its version.")
@tracking_uri_option
def promote(selector: str, target: str, tracking_uri: str | None) -> None:
    """Register how a run ran the model in MLflow's registry, for `mlflow models serve -m models:/NAME@ALIAS`.

    SELECTOR names the run of a scenario: its id (or the first 8 characters), or latest, latest:EXPERIMENT, study:ID with
    #SCENARIO. No weights are copied: the version points at the model, and loading it checks the digests of its files.
    """
    from llmtrack.decide.selection import single_run_id
    from llmtrack.run.promote import promote as register

    registered = register(single_run_id(selector, tracking_uri), target, tracking_uri)
    before = f" (before: version {registered.before})" if registered.before else ""
    print_text(f"{registered.uri} is version {registered.version}{before}")


@main.command(context_settings={"allow_extra_args": True}, add_help_option=False)
@click.argument("experiment", required=False, metavar="EXPERIMENT")
@click.option(
    "-P",
    "parameters",
    multiple=True,
    callback=key_values,
    metavar="NAME=VALUE",
    help="A parameter, as for `mlflow run -P`; docs/commands.md lists them.",
)
@click.option(
    "-h", "--help", "show_help", is_flag=True, help="Show this message, or EXPERIMENT's parameters, and exit."
)
@click.pass_context
def run(ctx: click.Context, experiment: str | None, parameters: dict[str, str], show_help: bool) -> None:
    """Run EXPERIMENT (baseline, precision, suite ...), from a checkout or an installed package, in any folder."""
    if experiment is None and show_help:
        print_text(ctx.get_help())
        return
    if ctx.args:
        raise UsageError(unexpected(ctx.args[0], "-P 'recipes=onnx/int4-hqq block_size=64'"))
    from llmtrack.host.entry_points import named_experiment
    from llmtrack.run.notebook import near_names

    if experiment is None:
        raise UsageError(f"name an experiment{near_names('')}")
    command = getattr(named_experiment(experiment), "main", None)
    if command is None:
        raise UsageError(f"there is no experiment {experiment!r}{near_names(experiment)}")
    if show_help:
        print_text("Of these, --NAME is the parameter -P NAME=VALUE, with underscores for dashes.")
        command.options_metavar = "[-P NAME=VALUE]..."
    arguments = [f"{flag_of(name)}={value}" for name, value in parameters.items()]
    command.main(["--help"] if show_help else arguments, prog_name=f"llmtrack run {experiment}")


@main.command()
@tracking_uri_option
def mcp(tracking_uri: str | None) -> None:
    """Serve tracked runs to agents by the Model Context Protocol, over stdin and stdout; nothing is ever written.

    Its tools: list_studies, compare, recommend, gate and history (of a metric, with intervals).
    """
    from llmtrack.cli.mcp import serve

    serve(tracking_uri)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Write a project folder for `mlflow run`: MLproject, conda.yaml and an example corpus."""
    from llmtrack.cli.new_project import write_project

    written = write_project(Path(os.path.expanduser(folder)))
    print_text(f"Written: {', '.join(map(str, written))}")
    print_text(f"Next: mlflow run {shlex.quote(str(folder))} -e baseline --env-manager local")


@main.command()
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--repair", is_flag=True, help="End runs left RUNNING by killed processes of this machine.")
@click.option("--tracking-uri", callback=optional, help="Store to repair.")
def doctor(style: str, repair: bool, tracking_uri: str | None) -> None:
    """Examine this machine and installation: what works, what is missing, and how to get it."""
    if repair:
        if style != "table":
            raise UsageError("--repair prints one line: leave --format out")
        from llmtrack.host.formatting import plural
        from llmtrack.tracking.write.running import close_abandoned

        closed = close_abandoned(tracking_uri)
        print_text(f"{plural(len(closed), 'run')} ended as killed{': ' if closed else ''}{', '.join(closed)}")
        return
    if tracking_uri is not None:
        raise UsageError(
            "--tracking-uri says which store to repair: add --repair, or set MLFLOW_TRACKING_URI to examine it"
        )
    from llmtrack.cli.doctor import examine, render_findings
    from llmtrack.report.terminal import make_console, width_of

    findings = examine()
    print_text(render_findings(findings, style, width_of(make_console())), nl=False)
    if any(finding.state == "broken" for finding in findings):
        sys.exit(1)


@main.command()
@click.option("--tracking-uri", callback=optional, help="Send everything there instead of to the original store.")
@click.option("--spool", type=click.Path(path_type=Path, file_okay=False), help="Folder of the kept records.")
def sync(tracking_uri: str | None, spool: Path | None) -> None:
    """Send measurements that were kept while the tracking server was unreachable."""
    from llmtrack.tracking.write.sync import sync as send

    result = send(spool, tracking_uri)
    print_text(f"{result.sent} sent, {result.left} still kept")
    for problem in result.problems:
        print_text(problem, err=True)
    if result.left or result.corrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
