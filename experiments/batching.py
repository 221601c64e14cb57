"""Which batch size makes the most of this machine, and how long does a sample wait for it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from experiments.prompts import UNEQUAL_PROMPTS
from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.report import reading as say
from llmtrack.report.plots import line_plot, measured
from llmtrack.report.table import intervals_overlap
from llmtrack.run.main import run_experiment
from llmtrack.run.settings import CommaList, Settings, shared_options
from llmtrack.scenario import GenerateTask, Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SIZES = (1, 2, 4, 8)


def build(settings: Settings, sizes: tuple[int, ...] = SIZES) -> Experiment:
    """Return the experiment: the same list of prompts worked off in batches of each size.

    Every arm does the same work, so the list is as long as the largest batch and each prompt comes in it once
    per round of the texts; they differ in length, as real requests do.
    """
    count = max(sizes)
    prompts = tuple(UNEQUAL_PROMPTS[index % len(UNEQUAL_PROMPTS)] for index in range(count))
    return Experiment(
        name="batching",
        question="Which batch size makes the most of this machine, and how long does a sample wait for it?",
        scenarios=tuple(
            Scenario(
                f"batch_{size}",
                settings.variant(),
                GenerateTask(prompts, max_new_tokens=settings.max_new_tokens, batch_size=size),
                settings.repeat(),
                baseline=size == sizes[0],
            )
            for size in sizes
        ),
        plots=plots,
        reading=reading,
        settings=settings.tracked(sizes=",".join(map(str, sizes)), prompts=count),
    )


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw throughput, what a sample costs, and what it waits, against the batch size."""
    kept = {"x": "batch_size", "x_label": "batch size", "log_x": True}
    return {
        "tokens_per_sec": line_plot(
            runs, y="tokens_per_sec", title="Throughput of the whole list", y_label="tokens/s", **kept
        ),
        "latency_per_sample": line_plot(
            runs, y="latency_per_sample_s", title="Time per sample worked off", y_label="s", **kept
        ),
        "batch_latency": line_plot(
            runs, y="batch_latency_s", title="Time a sample waits for its batch", y_label="s", **kept
        ),
    }


def reading(runs: pd.DataFrame) -> list[str]:
    """Name the batch size after which throughput stops growing, and what waiting for it costs."""
    done = measured(runs, "tokens_per_sec").sort_values("batch_size")
    if done.empty:
        return ["Nothing was measured."]
    first, best = done.iloc[0], knee(done)
    lines = [
        f"Throughput grows up to a batch size of {best['batch_size']}: {best['tokens_per_sec']:.1f} tokens/s, "
        f"{best['tokens_per_sec'] / first['tokens_per_sec']:.2f}x that of batch size {first['batch_size']}."
    ]
    if best["batch_size"] == done.iloc[-1]["batch_size"] and len(done) > 1:
        lines.append("That is the largest one tried, so a larger one may do more: raise sizes.")
    if say.has(best, "batch_latency_s") and best["batch_size"] != first["batch_size"]:
        lines.append(
            f"A sample then waits {best['batch_latency_s']:.2f} s for its batch instead of "
            f"{first['batch_latency_s']:.2f} s, and its text grows by {best['tokens_per_sec_per_sample']:.1f} tokens/s "
            f"instead of {first['tokens_per_sec_per_sample']:.1f}."
        )
    if say.has(best, "pad_share"):
        lines.append(
            f"Pads are {best['pad_share']:.0%} of the prompt positions at batch size {best['batch_size']}: "
            "sorting requests by length makes that less."
        )
    return lines + say.doubts(runs)


def knee(done: pd.DataFrame) -> pd.Series:
    """Return the run of the batch size after which throughput stops growing beyond noise.

    Args:
        done: measured runs, sorted by batch size.
    """
    best = done.iloc[0]
    for _, run in done.iloc[1:].iterrows():
        grows = run["tokens_per_sec"] > best["tokens_per_sec"]
        if grows and not intervals_overlap(best, run, "tokens_per_sec"):
            best = run
    return best


@click.command(help=__doc__)
@shared_options
@click.option(
    "--sizes",
    type=CommaList(click.IntRange(min=1)),
    default=",".join(map(str, SIZES)),
    show_default=True,
    help="Batch sizes.",
)
def main(sizes: tuple[int, ...], **shared: Any) -> None:
    """Run the experiment from the command line."""
    settings = Settings(**shared)
    run_experiment(build(settings, sizes), settings)


if __name__ == "__main__":
    main()
