"""What does the KV cache save, and what does padding cost and change?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import DEFAULT_PROMPT, UNEQUAL_PROMPTS
from llmtrack.decide.wording import ratio_text
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.options import Option
from llmtrack.report import reading as say
from llmtrack.report.plots import bar_plot, line_plot, measured
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, ManyTimingOptions, RunOptions
from llmtrack.scenario import Scenario
from llmtrack.task import GenerateTask
from llmtrack.tracking import ask
from llmtrack.tracking.frame import extended

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CACHES = (True, False)


@dataclass(frozen=True)
class Config(EngineOptions, ManyTimingOptions, RunOptions):
    """What the experiment takes."""

    lengths: Annotated[tuple[int, ...], Option("Output lengths in tokens.", min=1)] = (8, 16, 32)
    multiple: Annotated[int, Option("Pad one of the batches to a multiple of so many tokens.", min=2)] = 64


def build(config: Config) -> Experiment:
    """Return the experiment: the cache on and off at several output lengths, and a batch padded in each way."""
    cache = [
        Scenario(
            f"cache_{'on' if use_cache else 'off'}_{length}",
            config.variant(),
            GenerateTask((DEFAULT_PROMPT,), max_new_tokens=length, use_cache=use_cache),
            config.repeat(),
            baseline=use_cache,
        )
        for length in config.lengths
        for use_cache in CACHES
    ]
    batch = GenerateTask(UNEQUAL_PROMPTS, max_new_tokens=config.max_new_tokens, compare_unpadded=True)
    padding = {
        "pad_none": replace(batch, batch_size=1),
        "pad_left": replace(batch, padding_side="left"),
        "pad_right": replace(batch, padding_side="right"),
        f"pad_left_to_{config.multiple}": replace(
            batch, padding_side="left", pad_to_multiple=config.multiple
        ),
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


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw latency by output length with and without the cache, and throughput by padding."""
    cache, padding = _parts(runs)
    drawn = {}
    if len(measured(cache, "total_latency_s")):
        drawn["cache_latency"] = line_plot(
            extended(cache, cache=cache["use_cache"].map({True: "with KV cache", False: "without"})),
            x="max_new_tokens",
            y="total_latency_s",
            group="cache",
            title="Latency of the whole call by output length",
            x_label="new tokens",
        )
    if len(measured(padding, "tokens_per_sec")):
        drawn["padding_tokens_per_sec"] = bar_plot(
            padding,
            "scenario",
            "tokens_per_sec",
            title="New tokens per second by padding",
        )
    return drawn


def reading(runs: pd.DataFrame) -> list[str]:
    """Say what the cache saves, how decoding slows down without it, and which padding changes the text."""
    cache, padding = _parts(runs)
    done = measured(cache, "total_latency_s")
    lines = []
    longest = done[done["max_new_tokens"] == done["max_new_tokens"].max()]
    with_cache, without = (longest[ask.where(longest, "use_cache", used)] for used in CACHES)
    if len(with_cache) and len(without):
        on, off = with_cache.iloc[0], without.iloc[0]
        lines.append(
            f"Without the KV cache {off['max_new_tokens']} new tokens behind {off['prompt_tokens']} prompt tokens take "
            f"{say.change(on, off, 'total_latency_s')} ({on['total_latency_s']:.2f} s to {off['total_latency_s']:.2f} s)."
        )
        lines += [line for line in (_growth("with", on), _growth("without", off)) if line]
    lines += _padding_lines(measured(padding, "tokens_per_sec"))
    return (lines or ["Nothing was measured."]) + say.doubts(runs)


def _parts(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    padded = runs["scenario"].str.startswith("pad_").fillna(False).astype(bool)
    return runs[~padded], runs[padded]


def _growth(how: str, run: pd.Series) -> str:
    first, last = "inter_token_latency_first_quarter_ms", "inter_token_latency_last_quarter_ms"
    if not ask.has(run, first) or not ask.has(run, last):
        return ""
    return (
        f"From the first to the last quarter of the answer a token takes {run[first]:.1f} ms to {run[last]:.1f} ms "
        f"{how} the cache ({ratio_text(run[last] / run[first])})."
    )


def _padding_lines(done: pd.DataFrame) -> list[str]:
    lines = []
    by_name = {run["scenario"]: run for _, run in done.iterrows()}
    if "pad_none" in by_name and "pad_left" in by_name:
        alone, left = by_name["pad_none"], by_name["pad_left"]
        lines.append(
            f"One batch of {left['batch_size']} prompts, {left['pad_share']:.0%} pads, makes "
            f"{say.times(say.difference_between(alone, left, 'tokens_per_sec'), 'tokens/s of one prompt at a time')}."
        )
    texts = [
        f"{name} {run['rows_equal_unpadded']:.0%}"
        for name, run in by_name.items()
        if ask.has(run, "rows_equal_unpadded") and name != "pad_none"
    ]
    if texts:
        lines.append(f"Rows whose tokens equal the unpadded ones: {', '.join(texts)}.")
    return lines


def quick(config: Config) -> Config:
    """Return less of the same."""
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
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
