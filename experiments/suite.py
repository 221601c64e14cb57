"""Run every experiment and put all tracked runs into one table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from experiments import baseline, perplexity, precision, prompt_length
from llmtrack.experiment import Experiment
from llmtrack.report.console import make_console
from llmtrack.run.main import exit_codes, open_executor, open_tracker, say_where
from llmtrack.run.settings import CommaList, Settings, shared_options
from llmtrack.run.suite import run_suite

QUESTION = "How should this model run on this machine?"

BUILDERS: dict[str, Callable[[Settings], Experiment]] = {
    "baseline": baseline.build,
    "prompt_length": prompt_length.build,
    "precision": precision.build,
    "perplexity": perplexity.build,
}


@click.command(help=__doc__)
@shared_options
@click.option(
    "--experiments",
    "names",
    type=CommaList(click.Choice(list(BUILDERS))),
    default=",".join(BUILDERS),
    show_default=True,
    help="Experiments to run, in this order.",
)
def main(names: tuple[str, ...], **shared: Any) -> None:
    """Run the suite from the command line."""
    settings = Settings(**shared)
    console = make_console()
    with exit_codes(console), open_executor(settings) as executor:
        tracker = open_tracker(settings)
        result = run_suite(
            [BUILDERS[name](settings) for name in names],
            question=QUESTION,
            settings=settings.tracked(experiments=",".join(names)),
            tracker=tracker,
            executor=executor,
            console=console,
        )
        say_where(console, tracker)
        sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
