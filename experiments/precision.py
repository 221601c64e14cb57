"""Which precision is fastest here, and does it still say the same?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from experiments.prompts import DEFAULT_PROMPT
from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.report import reading as say
from llmtrack.report.plots import bar_plot, measured
from llmtrack.run.main import run_experiment
from llmtrack.run.settings import CommaList, Dtype, Settings, optional, shared_options
from llmtrack.scenario import GenerateTask, Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DTYPES = ("float32", "float16", "bfloat16")


def build(settings: Settings, dtypes: tuple[str, ...] = DTYPES, prompt: str = DEFAULT_PROMPT) -> Experiment:
    """Return the experiment: one prompt in each precision; the first one is the baseline."""
    scenarios = tuple(
        Scenario(
            dtype,
            settings.variant(dtype=dtype),
            GenerateTask((prompt,), max_new_tokens=settings.max_new_tokens),
            settings.repeat(),
            baseline=dtype == dtypes[0],
        )
        for dtype in dtypes
    )
    return Experiment(
        name="precision",
        question="Which precision is fastest here, and does it still say the same?",
        scenarios=scenarios,
        plots=plots,
        reading=reading,
        settings=settings.tracked(dtypes=",".join(dtypes), prompt=prompt),
    )


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw a bar of tokens/s per precision that was measured."""
    return {
        "tokens_per_sec": bar_plot(
            runs, "dtype", "tokens_per_sec", title="New tokens per second by precision", y_label="tokens/s"
        )
    }


def reading(runs: pd.DataFrame) -> list[str]:
    """Say which precision won, what it saves in memory, and whether the text changed."""
    done = measured(runs, "tokens_per_sec")
    if done.empty:
        return ["Nothing was measured."]
    fastest = done.loc[done["tokens_per_sec"].idxmax()]
    lines = [f"Fastest: {fastest['dtype']} with {fastest['tokens_per_sec']:.2f} tokens/s."]
    base = done.iloc[0]
    for _, run in done.iloc[1:].iterrows():
        same = "the same" if run["output_digest"] == base["output_digest"] else "other"
        lines.append(
            f"{run['dtype']} against {base['dtype']}: the call takes {say.change(base, run, 'total_latency_s')}, "
            f"the weights take {run['model_size_mib'] / base['model_size_mib']:.0%} of the memory, "
            f"and greedy decoding gives {same} tokens."
        )
    for _, run in runs[runs["outcome"] == "same_as"].iterrows():
        lines.append(f"{run['scenario']} was not measured on its own: {run['reason']}.")
    lines.append(
        "Speed is half of the choice: the perplexity experiment with the same dtype tells what it costs."
    )
    return lines + say.doubts(runs)


@click.command(help=__doc__)
@shared_options
@click.option(
    "--dtypes",
    type=CommaList(Dtype()),
    default=",".join(DTYPES),
    show_default=True,
    help="Precisions to compare.",
)
@click.option("--prompt", default="none", show_default=True, help="Text to continue; none: one of ours.")
def main(dtypes: tuple[str, ...], prompt: str, **shared: Any) -> None:
    """Run the experiment from the command line."""
    settings = Settings(**shared)
    run_experiment(build(settings, dtypes, optional(prompt) or DEFAULT_PROMPT), settings)


if __name__ == "__main__":
    main()
