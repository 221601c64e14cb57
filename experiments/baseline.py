"""How fast is the model on this machine, as it comes?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from experiments.prompts import DEFAULT_PROMPT
from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.report import reading as say
from llmtrack.report.plots import measured, step_plot
from llmtrack.run.main import run_experiment
from llmtrack.run.settings import Settings, optional, shared_options
from llmtrack.scenario import GenerateTask, Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def build(settings: Settings, prompt: str = DEFAULT_PROMPT) -> Experiment:
    """Return the experiment: one prompt, one scenario."""
    task = GenerateTask((prompt,), max_new_tokens=settings.max_new_tokens)
    return Experiment(
        name="baseline",
        question="How fast is the model on this machine, as it comes?",
        scenarios=(Scenario("baseline", settings.variant(), task, settings.repeat(), baseline=True),),
        plots=plots,
        reading=reading,
        settings=settings.tracked(prompt=prompt),
        show_block=True,
    )


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw the time before each token: the first bears the prefill."""
    done = measured(runs, "total_latency_s")
    if done.empty:
        return {}
    title = "Time before each token (the first one includes the prefill)"
    values = series(done.iloc[0]["run_id"], "token_latency_ms")
    return {"token_latency": step_plot(values, title=title, x_label="new token", y_label="ms")}


def reading(runs: pd.DataFrame) -> list[str]:
    """Say how fast, what the prefill costs, and what limits decoding."""
    done = measured(runs, "total_latency_s")
    if done.empty:
        return ["Nothing was measured."]
    run = done.iloc[0]
    return [say.speed(run), *say.phases(run), *say.bandwidth(run), *say.memory(run), *say.doubts(runs)]


@click.command(help=__doc__)
@shared_options
@click.option("--prompt", default="none", show_default=True, help="Text to continue; none: one of ours.")
def main(prompt: str, **shared: Any) -> None:
    """Run the experiment from the command line."""
    settings = Settings(**shared)
    run_experiment(build(settings, optional(prompt) or DEFAULT_PROMPT), settings)


if __name__ == "__main__":
    main()
