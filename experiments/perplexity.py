"""How well does the model predict a text?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from experiments import precision
from llmtrack.decide.differences import change_text
from llmtrack.decide.verdicts import difference_between
from llmtrack.devices import canonical_dtype
from llmtrack.errors import UsageError
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import step_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, RunOptions
from llmtrack.spec.options import Option, config_from
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import PerplexityTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config(PerplexityTask, EngineOptions, RunOptions):
    """Settings of the experiment."""

    dtypes: Annotated[tuple[str, ...], Option("Precisions to compare; none: only dtype.", read=canonical_dtype)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtypes and self.dtype not in (*self.dtypes, Config.dtype):
            raise UsageError(f"dtype {self.dtype} would change nothing beside dtypes: leave one of the two out")


def build(config: Config) -> Experiment:
    """Return the experiment: one corpus scored in each precision (default: that of `dtype`)."""
    task = config_from(PerplexityTask, config)
    dtypes = config.dtypes or (config.dtype,)
    scenarios = tuple(
        Scenario(f"perplexity_{dtype}", config.variant(dtype=dtype), task, baseline=dtype == dtypes[0])
        for dtype in dtypes
    )
    return DECLARED.asking(config, scenarios, dtypes=dtypes, stride=task.window_stride)


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw the loss of each batch."""
    return {
        f"batch_loss_{run.scenario}": step_plot(
            series(run.run_id, "batch_loss"),
            title=f"Loss of each batch, {run.text('dtype')} (mean {run.metrics['loss']:.4f} nats)",
            x_label="batch",
            y_label="loss (nats per token)",
        )
        for run in runs.measured("loss")
    }


def reading(runs: Runs) -> list[str]:
    """Summarize the perplexity, its convention, and what was omitted."""
    done = runs.measured("perplexity")
    if not done:
        return ["Nothing was scored."]
    base = done[0]
    lines = [
        f"{base.text('model_id')} in {base.text('dtype')}: loss {base.metrics['loss']:.4f}{_error(base)} nats per token, "
        f"perplexity {base.metrics['perplexity']:.3f}{_bits(base)}.",
        convention(base),
        f"Scored {base.metrics['tokens_scored']:,.0f} tokens of {_extent(base)}, "
        f"{base.metrics['tokens_truncated']:,.0f} tokens were cut, at {base.metrics['score_tokens_per_sec']:,.0f} tokens/s.",
    ]
    for run in done[1:]:
        difference = difference_between(base, run, "perplexity")
        change = f"perplexity {change_text(run.metrics['perplexity'] / base.metrics['perplexity'])} against {base.text('dtype')}"
        if difference.verdict == "same":
            change += f", {difference.words}"
        lines.append(f"{run.text('dtype')}: {difference.words if difference.verdict == 'not comparable' else change}.")
    return lines + say.doubts(runs)


def convention(run: Run) -> str:
    """Describe the convention by which a run was scored, without which its values mean nothing."""
    extent = f"at most {run.params['max_length']} tokens a document"
    if run.params["protocol"] == "rolling":
        extent = f"windows of {run.params['max_length']} tokens with stride {run.params['stride']}"
        if run.params["max_tokens"]:
            extent += f" over the first {run.params['max_tokens']} tokens"
    bos = f", BOS rule {run.params['bos_rule']}" if run.has("bos_rule") else ""
    return (
        f"Convention: protocol {run.params['protocol']}, corpus {run.text('corpus')} ({run.params['corpus_digest']}), {extent}{bos}; "
        "perplexities of another convention are not comparable with it."
    )


def _error(run: Run) -> str:
    return f" ± {run.metrics['loss_stderr']:.4f}" if run.has("loss_stderr") else ""


def _bits(run: Run) -> str:
    return f", {run.metrics['bits_per_byte']:.4f} bits per byte" if run.has("bits_per_byte") else ""


def _extent(run: Run) -> str:
    if run.has("windows_scored"):
        return f"one stream in {run.metrics['windows_scored']:,.0f} windows"
    return f"{run.metrics['documents_scored']:.0f} documents"


def in_suite(config: Config) -> Config:
    """Return a config with every precision that is timed, so that its cost in quality is known."""
    return replace(config, dtypes=tuple(dict.fromkeys((config.dtype, *precision.Config.dtypes))))


DECLARED = Declaration(
    "perplexity",
    "How well does the model predict a text?",
    Config,
    build,
    plots,
    reading,
    position=7,
    in_suite=in_suite,
    quick=lambda config: replace(config, max_length=64),
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
