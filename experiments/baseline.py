"""How fast is the model on this machine, as it comes?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import DEFAULT_PROMPT
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import step_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, RunOptions, TimingOptions
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config(EngineOptions, TimingOptions, RunOptions):
    """Settings of the experiment."""

    prompt: Annotated[str | None, Option("Text to continue; none: the default prompt.", min=1)] = None


def build(config: Config) -> Experiment:
    """Return the experiment: one prompt, one scenario."""
    prompt = config.prompt or DEFAULT_PROMPT
    task = GenerateTask((prompt,), max_new_tokens=config.max_new_tokens)
    return DECLARED.asking(
        config, (Scenario("baseline", config.variant(), task, config.repeat(), baseline=True),), prompt=prompt
    )


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw the time before each token: the first includes the prefill."""
    done = runs.measured("total_latency_s")
    if not done:
        return {}
    title = "Time before each token (the first one includes the prefill)"
    values = series(done[0].run_id, "token_latency_ms")
    return {
        "token_latency": step_plot(
            values, title=title, x_label="new token", y_label="time before the token (ms)", from_zero=True
        )
    }


def reading(runs: Runs) -> list[str]:
    """Summarize the speed, the cost of the prefill, and the limit of decoding."""
    done = runs.measured("total_latency_s")
    if not done:
        return ["Nothing was measured."]
    run = done[0]
    return [
        say.speed(run),
        *say.phases(run),
        *say.bandwidth(run),
        *say.roofline(run),
        *say.memory(run),
        *say.doubts(runs),
    ]


DECLARED = Declaration(
    "baseline",
    "How fast is the model on this machine, as it comes?",
    Config,
    build,
    plots,
    reading,
    show_block=True,
    position=1,
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
