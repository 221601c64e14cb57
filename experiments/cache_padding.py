"""What does the KV cache save, and what does padding cost and change?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import DEFAULT_PROMPT, UNEQUAL_PROMPTS
from llmtrack.decide.differences import ratio_text
from llmtrack.decide.verdicts import difference_between
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import bar_plot, line_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, ManyTimingOptions, RunOptions
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Config(EngineOptions, ManyTimingOptions, RunOptions):
    """Settings of the experiment."""

    lengths: Annotated[tuple[int, ...], Option("Output lengths in tokens.", min=1)] = (8, 16, 32)
    multiple: Annotated[int, Option("Pad one of the batches to a multiple of this many tokens.", min=2)] = 64


def build(config: Config) -> Experiment:
    """Return the experiment: the cache on and off at several output lengths, and a batch with each kind of padding."""
    cache = [
        Scenario(
            f"cache_{'on' if use_cache else 'off'}_{length}",
            config.variant(),
            GenerateTask((DEFAULT_PROMPT,), max_new_tokens=length, use_cache=use_cache),
            config.repeat(),
            baseline=use_cache,
        )
        for length in config.lengths
        for use_cache in (True, False)
    ]
    batch = GenerateTask(UNEQUAL_PROMPTS, max_new_tokens=config.max_new_tokens, compare_unpadded=True)
    padding = {
        "pad_none": replace(batch, batch_size=1),
        "pad_left": replace(batch, padding_side="left"),
        "pad_right": replace(batch, padding_side="right"),
        f"pad_left_to_{config.multiple}": replace(batch, padding_side="left", pad_to_multiple=config.multiple),
    }
    return DECLARED.asking(
        config,
        (
            *cache,
            *(
                Scenario(name, config.variant(), task, config.repeat(), baseline=name == "pad_none")
                for name, task in padding.items()
            ),
        ),
    )


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw latency by output length with and without the cache, and throughput by padding."""
    cache, padding = _parts(runs)
    figures = {}
    if cache.measured("total_latency_s"):
        figures["cache_latency"] = line_plot(
            Runs(map(_with_cache_label, cache)),
            x="max_new_tokens",
            y="total_latency_s",
            group="cache",
            title="Latency of the whole call by output length",
            x_label="new tokens",
        )
    if padding.measured("tokens_per_sec"):
        figures["padding_tokens_per_sec"] = bar_plot(
            padding, "scenario", "tokens_per_sec", title="New tokens per second by padding"
        )
    return figures


def reading(runs: Runs) -> list[str]:
    """Summarize what the cache saves, how decoding slows down without it, and which padding changes the text."""
    cache, padding = _parts(runs)
    done = cache.measured("total_latency_s")
    lines = []
    longest = max((run.params["max_new_tokens"] for run in done), default=0)
    of_longest = [run for run in done if run.params["max_new_tokens"] == longest]
    on = next((run for run in of_longest if run.params["use_cache"]), None)
    off = next((run for run in of_longest if not run.params["use_cache"]), None)
    if on is not None and off is not None:
        lines.append(
            f"Without the KV cache {off.params['max_new_tokens']} new tokens behind {off.params['prompt_tokens']} prompt tokens take "
            f"{say.change(on, off, 'total_latency_s')} ({on.metrics['total_latency_s']:.2f} s to {off.metrics['total_latency_s']:.2f} s)."
        )
        lines += [line for line in (_growth("with", on), _growth("without", off)) if line]
    lines += _padding_lines(padding.measured("tokens_per_sec"))
    return (lines or ["Nothing was measured."]) + say.doubts(runs)


def _parts(runs: Runs) -> tuple[Runs, Runs]:
    def padded(run: Run) -> bool:
        return run.scenario.startswith("pad_")

    return runs.where(lambda run: not padded(run)), runs.where(padded)


def _with_cache_label(run: Run) -> Run:
    name = "with KV cache" if run.params.get("use_cache") else "without"
    return replace(run, params={**run.params, "cache": name})


def _growth(with_or_without: str, run: Run) -> str:
    first, last = "inter_token_latency_first_quarter_ms", "inter_token_latency_last_quarter_ms"
    if not run.has(first) or not run.has(last):
        return ""
    return (
        f"From the first to the last quarter of the answer a token takes {run.metrics[first]:.1f} ms to {run.metrics[last]:.1f} ms "
        f"{with_or_without} the cache ({ratio_text(run.metrics[last] / run.metrics[first])})."
    )


def _padding_lines(done: Runs) -> list[str]:
    lines = []
    by_name = {run.scenario: run for run in done}
    if "pad_none" in by_name and "pad_left" in by_name:
        alone, left = by_name["pad_none"], by_name["pad_left"]
        lines.append(
            f"One batch of {left.params['batch_size']} prompts, {left.metrics['pad_share']:.0%} pads, makes "
            f"{say.times(difference_between(alone, left, 'tokens_per_sec'), 'tokens/s of one prompt at a time')}."
        )
    texts = [
        f"{name} {run.metrics['rows_equal_unpadded']:.0%}"
        for name, run in by_name.items()
        if run.has("rows_equal_unpadded") and name != "pad_none"
    ]
    if texts:
        lines.append(f"Rows whose tokens equal the unpadded ones: {', '.join(texts)}.")
    return lines


def quick(config: Config) -> Config:
    """Return a smaller config for a first look."""
    return replace(config, max_new_tokens=min(config.max_new_tokens, 4), lengths=(4, 16))


DECLARED = Declaration(
    "cache_padding",
    "What does the KV cache save, and what does padding cost and change?",
    Config,
    build,
    plots,
    reading,
    position=3,
    quick=quick,
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
