"""How well does the model predict a text?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.report import reading as say
from llmtrack.report.plots import measured, step_plot
from llmtrack.run.main import run_experiment
from llmtrack.run.settings import CommaList, Dtype, Settings, optional, shared_options
from llmtrack.scenario import PerplexityTask, Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def build(
    settings: Settings, task: PerplexityTask = PerplexityTask(), dtypes: tuple[str, ...] = ()
) -> Experiment:
    """Return the experiment: one corpus scored in each precision (by default the settings' one)."""
    dtypes = dtypes or (settings.dtype,)
    scenarios = tuple(
        Scenario(f"perplexity_{dtype}", settings.variant(dtype=dtype), task, baseline=dtype == dtypes[0])
        for dtype in dtypes
    )
    return Experiment(
        name="perplexity",
        question="How well does the model predict a text?",
        scenarios=scenarios,
        plots=plots,
        reading=reading,
        settings=settings.tracked(
            dtypes=",".join(dtypes),
            corpus=task.corpus,
            protocol=task.protocol,
            max_length=task.max_length,
            batch_size=task.batch_size,
            padding_side=task.padding_side,
        ),
    )


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw the loss of each batch."""
    return {
        f"batch_loss_{run['scenario']}": step_plot(
            series(run["run_id"], "batch_loss"),
            title=f"Loss of each batch, {run['dtype']} (mean {run['loss']:.4f} nats)",
            x_label="batch",
            y_label="nats per token",
        )
        for _, run in measured(runs, "loss").iterrows()
    }


def reading(runs: pd.DataFrame) -> list[str]:
    """Say what the perplexity is, under which convention, and what was left out."""
    done = measured(runs, "perplexity")
    if done.empty:
        return ["Nothing was scored."]
    base = done.iloc[0]
    lines = [
        f"{base['model_id']} in {base['dtype']}: loss {base['loss']:.4f} nats per token, "
        f"perplexity {base['perplexity']:.3f}, {base['bits_per_byte']:.4f} bits per byte.",
        f"Convention: protocol {base['protocol']}, corpus {base['corpus']} ({base['corpus_digest']}), at most "
        f"{base['max_length']} tokens a document; perplexities of another convention must not be compared with it.",
        f"Scored {base['tokens_scored']:,.0f} tokens of {base['documents_scored']:.0f} documents, "
        f"{base['tokens_truncated']:,.0f} tokens were cut, at {base['score_tokens_per_sec']:,.0f} tokens/s.",
    ]
    for _, run in done.iloc[1:].iterrows():
        lines.append(
            f"{run['dtype']}: perplexity {run['perplexity'] / base['perplexity'] - 1:+.2%} against {base['dtype']}."
        )
    return lines + say.doubts(runs)


@click.command(help=__doc__)
@shared_options
@click.option("--corpus", default="builtin", show_default=True, help="builtin, or a .txt or .jsonl file.")
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Tokens of a document at most.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=4, show_default=True, help="Documents per batch."
)
@click.option("--padding-side", type=click.Choice(["right", "left"]), default="right", show_default=True)
@click.option(
    "--dtypes", default="none", show_default=True, help="Precisions to compare; none: only --dtype."
)
@click.option("--verbose", type=bool, default=False, show_default=True, help="Print a line per batch.")
def main(
    corpus: str,
    max_length: int,
    batch_size: int,
    padding_side: str,
    dtypes: str,
    verbose: bool,
    **shared: Any,
) -> None:
    """Run the experiment from the command line."""
    settings = Settings(**shared)
    task = PerplexityTask(corpus, "documents", max_length, batch_size, padding_side, verbose)
    chosen = CommaList(Dtype())(dtypes) if optional(dtypes) else ()
    run_experiment(build(settings, task, chosen), settings)


if __name__ == "__main__":
    main()
