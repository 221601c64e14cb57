"""Which precision is fastest here, and does it still say the same?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import DEFAULT_PROMPT
from llmtrack.devices import canonical_dtype
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import bar_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import BackendOption, ModelOptions, RunOptions, TimingOptions
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config(ModelOptions, BackendOption, TimingOptions, RunOptions):
    """Settings of the experiment."""

    dtypes: Annotated[tuple[str, ...], Option("Precisions to compare.", read=canonical_dtype)] = (
        "float32",
        "float16",
        "bfloat16",
    )
    prompt: Annotated[str | None, Option("Text to continue; none: the default prompt.", min=1)] = None


def build(config: Config) -> Experiment:
    """Return the experiment: one prompt in each precision; the first one is the baseline."""
    prompt = config.prompt or DEFAULT_PROMPT
    scenarios = tuple(
        Scenario(
            dtype,
            config.variant(dtype=dtype),
            GenerateTask((prompt,), max_new_tokens=config.max_new_tokens),
            config.repeat(),
            baseline=dtype == config.dtypes[0],
        )
        for dtype in config.dtypes
    )
    return DECLARED.asking(config, scenarios, prompt=prompt)


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw tokens/s per measured precision."""
    return {"tokens_per_sec": bar_plot(runs, "dtype", "tokens_per_sec", title="New tokens per second by precision")}


def reading(runs: Runs) -> list[str]:
    """Name the fastest precision, the memory it saves, and whether the text changed."""
    done = runs.measured("tokens_per_sec")
    if not done:
        return ["Nothing was measured."]
    fastest, base = max(done, key=lambda run: run.metrics["tokens_per_sec"]), done[0]
    others = [run for run in done if run.run_id != fastest.run_id]
    behind = say.all_behind(fastest, others, "total_latency_s")
    lines = say.undecided("Which precision is fastest", done) or [
        f"Fastest: {fastest.text('dtype')}{say.doubt(fastest)} with {fastest.metrics['tokens_per_sec']:.2f} tokens/s{behind}."
    ]
    for run in done[1:]:
        tokens = "the same" if run.agrees(base, "output_digest") else "other"
        lines.append(
            f"{run.text('dtype')} against {base.text('dtype')}: the call takes {say.change(base, run, 'total_latency_s')}, "
            f"the weights take {run.metrics['model_size_mib'] / base.metrics['model_size_mib']:.0%} of the memory, "
            f"and greedy decoding gives {tokens} tokens."
        )
    lines.append(
        "Speed is half of the choice: the perplexity experiment with the same dtype shows its cost in quality."
    )
    return lines + say.doubts(runs)


DECLARED = Declaration(
    "precision",
    "Which precision is fastest here, and does it still say the same?",
    Config,
    build,
    plots,
    reading,
    position=6,
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
