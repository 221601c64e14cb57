"""How much faster do two workers score a text than one, with one thread each?

    python -m benchmarks.shards                                     # two to three minutes, on a machine with two idle cores
    python -m benchmarks.shards --rounds 1 --tokens 512             # a trial

One worker and two take turns, and keep their models between rounds: scoring time excludes loading, which shows in the
first round's seconds. The results must agree to 1e-9.
"""

from __future__ import annotations

import time
from statistics import median

import click

from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask

GOAL = 0.9
ALIKE = 1e-9


def scored(executor: ProcessExecutor, scenario: Scenario) -> tuple[Measurement, float]:
    """Score a text; return the measurement and the total seconds."""
    measurements: list[Measurement] = []

    def take(event: Event) -> None:
        if isinstance(event, Failure):
            raise click.ClickException(event.reason)
        if isinstance(event, Measurement):
            measurements.append(event)

    start = time.perf_counter()
    run_scenarios(executor, (scenario,), take)
    return measurements[0], time.perf_counter() - start


@click.command(help=__doc__)
@click.option("--model", default="synthetic:smollm2-135m", show_default=True)
@click.option("--tokens", type=click.IntRange(min=2), default=4096, show_default=True, help="Of the text.")
@click.option("--length", type=click.IntRange(min=2), default=64, show_default=True, help="Of a window.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--workers", type=click.IntRange(min=2), default=2, show_default=True)
def main(model: str, tokens: int, length: int, rounds: int, workers: int) -> None:
    """Score with one worker and with several in turn, and print the times."""
    variant = Variant(model, device="cpu", options=(("threads", 1),))
    speeds: dict[int, list[float]] = {1: [], workers: []}
    losses = []
    single, several = ProcessExecutor(), ProcessExecutor()
    try:
        for number in range(rounds):
            for count, executor in ((1, single), (workers, several)):
                task = PerplexityTask(
                    protocol="rolling", max_length=length, max_tokens=tokens, batch_size=1, workers=count
                )
                done, took = scored(executor, Scenario("text", variant, task))
                speeds[count].append(done.metrics["score_tokens_per_sec"])
                losses.append(done.metrics["loss"])
                print(
                    f"round {number + 1}, {count} worker(s): {speeds[count][-1]:8.1f} tokens/s, loss {losses[-1]:.12f}, "
                    f"{took:6.1f} s in all"
                )
    finally:
        single.close()
        several.close()
    shares = [many / (workers * one) for one, many in zip(speeds[1], speeds[workers], strict=True)]
    overall = median(speeds[workers]) / (workers * median(speeds[1]))
    print(
        f"of linear: {overall:.3f} by the medians (goal: {GOAL}); by rounds {', '.join(f'{share:.3f}' for share in shares)}"
    )
    print(f"largest difference of the loss: {max(losses) - min(losses):.1e} (goal: {ALIKE:g})")
    if max(losses) - min(losses) > ALIKE:
        raise click.ClickException("the loss differs")


if __name__ == "__main__":
    main()
