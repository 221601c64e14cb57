"""What is the overhead of llmtrack's training over a plain loop, on the same model and windows?

Both train in one process, in turn, from the same fresh weights, so that drift affects both equally:

    python -m benchmarks.training_overhead --steps 20 --rounds 15

llmtrack does all that it does in an experiment: checks, history, events written as JSON lines; only evaluations and
checkpoints, which the plain loop has none of, fall outside what is timed: from the end of the first step to that of the
last. Prints tokens/s and their ratio to the plain loop's of the same round, with a bootstrap 95 % interval of the median: 1 is
no overhead. The plain loop runs twice, so that the ratio of equal things is known, too.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import click
import torch

from llmtrack.measure.statistics import bootstrap_median_ci, summarize
from llmtrack.spec.events import Event, Progress, event_to_json
from llmtrack.spec.outcome import Failure
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask
from llmtrack.train.loop import BETAS
from llmtrack.train.session import open_session
from llmtrack.worker.train import measure_training


def plain_training(variant: Variant, task: TrainTask) -> float:
    """Return the seconds from the end of the first step to that of the last, in a plain loop."""
    session = open_session(variant, task)
    model = session.engine.model.train()
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=task.learning_rate, betas=BETAS, weight_decay=task.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=task.steps)
    run = model if session.compile == "none" else torch.compile(model)
    begin = 0.0
    for step, batch in enumerate(islice(session.batches(), task.steps)):
        with torch.autocast(device.type, dtype=torch.bfloat16) if session.autocast else nullcontext():
            logits = run(input_ids=batch.inputs.to(device), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch.targets.to(device).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        begin = begin or time.perf_counter()
        if step == task.steps - 1:
            return time.perf_counter() - begin
    raise AssertionError("batches never end")


def our_training(variant: Variant, task: TrainTask) -> float:
    """Return the seconds from the end of the first step to that of the last, in llmtrack's training."""
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as pipe:

        def emit(event: Event) -> None:
            pipe.write(json.dumps({"event": event_to_json(event)}) + "\n")
            pipe.flush()
            if isinstance(event, Progress) and event.step.startswith("step "):
                stamps.append(time.perf_counter())
            elif isinstance(event, Failure):
                raise click.ClickException(event.reason)

        own = TrainTask(**{**vars(task), "output": str(Path(folder) / "out")})
        measure_training(Scenario("training", variant, own), own, emit, time.perf_counter)
    return stamps[-1] - stamps[0]


@click.command(help=__doc__)
@click.option("--model", default="synthetic:1m", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--steps", type=click.IntRange(min=3), default=20, show_default=True)
@click.option("--rounds", type=click.IntRange(min=3), default=15, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--sequence-length", type=click.IntRange(min=1), default=256, show_default=True)
def main(model: str, device: str, dtype: str, steps: int, rounds: int, batch_size: int, sequence_length: int) -> None:
    """Time both, in turn, and print the ratio."""
    variant = Variant(model, device=device, dtype=dtype)
    task = TrainTask(
        steps=steps,
        eval_every=steps,
        batch_size=batch_size,
        sequence_length=sequence_length,
        validation_tokens=64,
        sample_tokens=0,
        log_checkpoint="none",
    )
    # The plain loop runs twice: the difference between its runs is the noise of any ratio.
    sides = {"plain loop": plain_training, "plain loop again": plain_training, "llmtrack": our_training}
    for side in sides.values():
        side(variant, task)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(0)
    for _ in range(rounds):
        # In a new order each time, to balance cache effects.
        for name in order.sample(list(sides), len(sides)):
            seconds[name].append(sides[name](variant, task))
    tokens = (steps - 1) * batch_size * sequence_length
    print(
        f"{model}, {dtype} on {device}, {steps - 1} steps of {batch_size} x {sequence_length} tokens, {rounds} rounds, "
        f"{torch.get_num_threads()} threads"
    )
    for name, times in seconds.items():
        ratios = [plain / its for plain, its in zip(seconds["plain loop"], times, strict=True)]
        low, high = bootstrap_median_ci(ratios)
        speed = tokens / summarize(times).median
        print(f"{name:<18}{speed:>12,.0f} tokens/s   x {summarize(ratios).median:.4f}  [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
