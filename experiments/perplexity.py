"""How well does the model predict a text?"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.report import reading as say
from llmtrack.report.console import make_console
from llmtrack.report.plots import measured, step_plot
from llmtrack.run.main import exit_codes, run_experiment
from llmtrack.run.settings import CommaList, Dtype, Settings, optional, shared_options
from llmtrack.scenario import BOS_RULES, PROTOCOLS, PerplexityTask, Scenario

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
            stride=task.window_stride,
            bos_rule=task.bos_rule,
            max_tokens=task.max_tokens,
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
        f"{base['model_id']} in {base['dtype']}: loss {base['loss']:.4f}{_error(base)} nats per token, "
        f"perplexity {base['perplexity']:.3f}, {base['bits_per_byte']:.4f} bits per byte.",
        convention(base),
        f"Scored {base['tokens_scored']:,.0f} tokens of {_extent(base)}, "
        f"{base['tokens_truncated']:,.0f} tokens were cut, at {base['score_tokens_per_sec']:,.0f} tokens/s.",
    ]
    for _, run in done.iloc[1:].iterrows():
        lines.append(
            f"{run['dtype']}: perplexity {run['perplexity'] / base['perplexity'] - 1:+.2%} against {base['dtype']}."
        )
    return lines + say.doubts(runs)


def convention(run: pd.Series) -> str:
    """Say by which convention a run was scored, without which its figures mean nothing."""
    extent = f"at most {run['max_length']} tokens a document"
    if run["protocol"] == "rolling":
        extent = f"windows of {run['max_length']} tokens with stride {run['stride']}"
        if run["max_tokens"]:
            extent += f" over the first {run['max_tokens']} tokens"
    bos = f", BOS rule {run['bos_rule']}" if say.has(run, "bos_rule") else ""
    return (
        f"Convention: protocol {run['protocol']}, corpus {run['corpus']} ({run['corpus_digest']}), {extent}{bos}; "
        "perplexities of another convention must not be compared with it."
    )


def _error(run: pd.Series) -> str:
    return f" ± {run['loss_stderr']:.4f}" if say.has(run, "loss_stderr") else ""


def _extent(run: pd.Series) -> str:
    if say.has(run, "windows_scored"):
        return f"one stream in {run['windows_scored']:,.0f} windows"
    return f"{run['documents_scored']:.0f} documents"


@click.command(help=__doc__)
@shared_options
@click.option(
    "--corpus", default="builtin", show_default=True, help="builtin, pydoc, or a .txt or .jsonl file."
)
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="documents",
    show_default=True,
    help="Each text on its own, or all as one stream.",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Tokens of a document, or read in a window, at most.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="rolling: new tokens of each window; 0: max-length.",
)
@click.option(
    "--bos-rule",
    type=click.Choice(BOS_RULES),
    default="tokenizer",
    show_default=True,
    help="What is put before a text: what the tokenizer adds, the model's BOS or EOS, or nothing.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="rolling: tokens of the stream that are used at most; 0: all.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Documents or windows per batch.",
)
@click.option("--padding-side", type=click.Choice(["right", "left"]), default="right", show_default=True)
@click.option(
    "--dtypes", default="none", show_default=True, help="Precisions to compare; none: only --dtype."
)
@click.option("--verbose", type=bool, default=False, show_default=True, help="Print a line per batch.")
def main(dtypes: str, **options: Any) -> None:
    """Run the experiment from the command line."""
    own = {field.name: options.pop(field.name) for field in fields(PerplexityTask)}
    settings = Settings(**options)
    chosen = CommaList(Dtype())(dtypes) if optional(dtypes) else ()
    with exit_codes(make_console()):
        experiment = build(settings, PerplexityTask(**own), chosen)
    run_experiment(experiment, settings)


if __name__ == "__main__":
    main()
