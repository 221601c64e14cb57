"""What does a longer prompt cost?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from experiments.prompts import BASE_TEXT
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import line_plot
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

    lengths: Annotated[tuple[int, ...], Option("Prompt lengths in tokens.", min=1)] = (16, 64, 256)


def build(config: Config) -> Experiment:
    """Return the experiment: one text repeated to each length in tokens, all else equal."""
    scenarios = tuple(
        Scenario(
            f"prompt_{length}",
            config.variant(),
            GenerateTask((BASE_TEXT,), prompt_tokens=length, max_new_tokens=config.max_new_tokens),
            config.repeat(),
            baseline=length == config.lengths[0],
        )
        for length in config.lengths
    )
    return DECLARED.asking(config, scenarios)


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw latency and throughput against the prompt length."""
    axes: dict[str, Any] = {"x": "prompt_tokens_total", "x_label": "prompt tokens", "log_x": True}
    return {
        "latency": line_plot(runs, y="total_latency_s", title="Latency of the whole call", **axes),
        "tokens_per_sec": line_plot(runs, y="tokens_per_sec", title="New tokens per second, prefill included", **axes),
    }


def reading(runs: Runs) -> list[str]:
    """Summarize how latency, the first token and decoding change from the shortest to the longest prompt."""
    done = runs.measured("total_latency_s").by("prompt_tokens_total")
    if len({run.params["prompt_tokens_total"] for run in done if run.has("prompt_tokens_total")}) < 2:
        return ["Fewer than two lengths were measured: there is nothing to compare.", *say.doubts(runs)]
    short, long = done[0], done[-1]
    lines = [
        f"From {short.params['prompt_tokens_total']} to {long.params['prompt_tokens_total']} prompt tokens the call takes "
        f"{say.change(short, long, 'total_latency_s', across_work=True)} ({short.metrics['total_latency_s']:.2f} s to {long.metrics['total_latency_s']:.2f} s)."
    ]
    extra_tokens = long.params["prompt_tokens_total"] - short.params["prompt_tokens_total"]
    extra_ms = long.metrics["time_to_first_token_ms"] - short.metrics["time_to_first_token_ms"]
    lines.append(
        f"Each further prompt token costs {extra_ms / extra_tokens:.2f} ms of the time to the first token{say.doubt(long)}."
        if extra_ms > 0
        else "What a further prompt token costs is lost in the noise: the first token came no later behind the longer prompt."
    )
    if short.has("inter_token_latency_ms") and long.has("inter_token_latency_ms"):
        lines.append(
            f"Per token, decoding behind the longer prompt takes {say.change(short, long, 'inter_token_latency_ms', across_work=True)} "
            f"({short.metrics['inter_token_latency_ms']:.1f} ms to {long.metrics['inter_token_latency_ms']:.1f} ms)."
        )
    share = long.metrics["time_to_first_token_ms"] / 1000 / long.metrics["total_latency_s"]
    lines.append(
        f"At {long.params['prompt_tokens_total']} prompt tokens the prefill is {share:.0%} of the call{say.doubt(long)}; "
        f"a longer answer would make that share smaller."
    )
    return lines + say.doubts(runs)


DECLARED = Declaration(
    "prompt_length",
    "What does a longer prompt cost?",
    Config,
    build,
    plots,
    reading,
    position=2,
    quick=lambda config: replace(config, lengths=(16, 128)),
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
