"""Which batch size makes the most of this machine, and how long does a sample wait for it?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from experiments.prompts import UNEQUAL_PROMPTS
from llmtrack.decide.verdicts import difference_between
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.report.plots.charts import line_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, RunOptions, TimingOptions
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Share of pads from which they are mentioned: smaller ones round to 0 %.
_LEAST_PAD_SHARE = 0.005


@dataclass(frozen=True)
class Config(EngineOptions, TimingOptions, RunOptions):
    """Settings of the experiment."""

    sizes: Annotated[tuple[int, ...], Option("Batch sizes.", min=1, max=16_384)] = (1, 2, 4, 8)


def build(config: Config) -> Experiment:
    """Return the experiment: the same list of prompts processed in batches of each size.

    Every arm does the same work: the list is as long as the largest batch and contains each prompt once per round; the
    prompts differ in length, as real requests do.
    """
    count = max(config.sizes)
    prompts = tuple(UNEQUAL_PROMPTS[index % len(UNEQUAL_PROMPTS)] for index in range(count))
    return DECLARED.asking(
        config,
        tuple(
            Scenario(
                f"batch_{size}",
                config.variant(),
                GenerateTask(prompts, max_new_tokens=config.max_new_tokens, batch_size=size),
                config.repeat(),
                baseline=size == config.sizes[0],
            )
            for size in config.sizes
        ),
        prompts=count,
    )


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw throughput, time per sample, and waiting time against the batch size."""
    axes: dict[str, Any] = {"x": "batch_size", "x_label": "batch size", "log_x": True}
    return {
        "tokens_per_sec": line_plot(runs, y="tokens_per_sec", title="Throughput of the whole list", **axes),
        "latency_per_sample": line_plot(runs, y="latency_per_sample_s", title="Time per sample", **axes),
        "batch_latency": line_plot(runs, y="batch_latency_s", title="Time a sample waits for its batch", **axes),
    }


def reading(runs: Runs) -> list[str]:
    """Name the batch size after which throughput stops growing, and the waiting time that it costs."""
    done = runs.measured("tokens_per_sec").by("batch_size")
    if not done:
        return ["Nothing was measured."]
    first, best = done[0], knee(done)
    growth = difference_between(first, best, "tokens_per_sec")
    if undecided := say.undecided("Which batch size makes the most", done):
        return [*undecided, *say.doubts(runs)]
    if best.run_id == first.run_id:
        lines = [
            f"No larger batch is known to make more than batch size {first.params['batch_size']}: "
            f"{first.metrics['tokens_per_sec']:.1f} tokens/s{say.doubt(first)}."
        ]
    else:
        amount = f"rate of batch size {first.params['batch_size']}"
        lines = [
            f"Throughput grows up to a batch size of {best.params['batch_size']}{say.doubt(best)}: {best.metrics['tokens_per_sec']:.1f} tokens/s, "
            f"{say.times(growth, amount)}."
        ]
    lines += say.cannot_tell(best, done, "tokens_per_sec")
    if best.params["batch_size"] == done[-1].params["batch_size"] and len(done) > 1:
        lines.append("That is the largest one tried, so a larger one may do more: raise sizes.")
    if best.has("batch_latency_s") and best.params["batch_size"] != first.params["batch_size"]:
        lines.append(
            f"A sample then waits {best.metrics['batch_latency_s']:.2f} s for its batch instead of "
            f"{first.metrics['batch_latency_s']:.2f} s, and its text grows by {best.metrics['tokens_per_sec_per_sample']:.1f} tokens/s "
            f"instead of {first.metrics['tokens_per_sec_per_sample']:.1f}."
        )
    if best.has("pad_share") and best.metrics["pad_share"] >= _LEAST_PAD_SHARE:
        lines.append(
            f"Padding takes {best.metrics['pad_share']:.0%} of the prompt positions at batch size {best.params['batch_size']}: sort requests by "
            "length to reduce it."
        )
    return lines + say.doubts(runs)


def knee(done: Runs) -> Run:
    """Find the run of the batch size after which throughput stops growing beyond noise.

    Args:
        done: measured runs, sorted by batch size.
    """
    best = done[0]
    for run in done[1:]:
        if difference_between(best, run, "tokens_per_sec").verdict == "better":
            best = run
    return best


def quick(config: Config) -> Config:
    """Return a smaller config for a first look."""
    return replace(config, max_new_tokens=min(config.max_new_tokens, 8), sizes=(1, 4))


DECLARED = Declaration(
    "batching",
    "Which batch size makes the most of this machine, and how long does a sample wait for it?",
    Config,
    build,
    plots,
    reading,
    position=4,
    quick=quick,
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
