"""Is the answer of a time-limited search right? In simulated worlds, or on this machine against a full grid.

    python -m benchmarks.tune --seeds 10
    python -m benchmarks.tune --real --model packaged:smollm2 --budget 5m --space threads=0

For each level of load, over 3 to 60 candidates and budgets of 60 to 900 s, prints how the searches ended: how often the
best candidate, or one within 5 %, was named if the budget allowed a sample of it, and how many proven claims were false.
With `--real`, tunes a model on this machine, and then measures and scores each of the same candidates in full; nothing is
tracked.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console

from benchmarks.search_world import World, search
from experiments.tune import Config, prepared
from llmtrack.decide.goal import PartScore
from llmtrack.decide.text_quality import ComparedPart, perplexity_ratio
from llmtrack.decide.tuning import Tuning
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.progress import SearchProgress
from llmtrack.run.tune.trials import Trials

REPEATS = 6
LOADS: dict[str, dict[str, Any]] = {
    "quiet": {},
    "30 % slower as it heats up": {"noise": 0.03, "heat": 0.3},
    "load 1.5, noise 5 %": {"noise": 0.05, "load": 1.5},
    "load 2, noise 8 %": {"noise": 0.08, "load": 2.0},
    "load 3, noise 15 %": {"noise": 0.15, "load": 3.0},
    "load 5, noise 25 %": {"noise": 0.25, "load": 5.0, "heat": 0.2},
    "another program comes and goes": {"noise": 0.03, "bursts": 4.0},
}
CANDIDATES = (3, 8, 24, 60)
BUDGETS = (60.0, 180.0, 300.0, 900.0)


@contextmanager
def trials_for(config: Config) -> Iterator[Trials]:
    """Yield the trials of a model on this machine, with no model loaded yet."""
    began = time.monotonic()
    with (
        prepared(config, ProcessExecutor) as (pool, space, goal),
        tempfile.TemporaryDirectory() as folder,
        SearchProgress(Console(stderr=True), goal.seconds, began) as progress,
    ):
        journal = Journal(Path(folder) / "journal.jsonl", False)
        now = time.monotonic()
        yield Trials(space.candidates, goal, pool, progress, journal, Path(folder), time.monotonic, now)


def full_grid(trials: Trials) -> tuple[dict[str, float], dict[str, float]]:
    """Measure every candidate as often as a grid does, sequentially, and score the whole text with each model.

    Returns:
        The median of the objective, and the perplexity ratio to the baseline, of the candidates that succeeded.
    """
    task = trials.search_goal()
    models = trials.priors({})
    speeds: dict[str, float] = {}
    scores: dict[str, list[PartScore]] = {}
    for name in task.names:
        samples = [trials.measure(name, math.inf).values.get(task.objective) for _ in range(REPEATS)]
        values = [value for value in samples if value is not None]
        if len(values) == REPEATS:
            speeds[name] = median(values)
            model = models[name].model
            if model not in scores:
                scores[model] = [trials.score(name, part, math.inf) for part in range(task.parts)]
        trials.dropped(name)
    reference = scores[models[task.baseline].model]
    losses = {}
    for model, own in scores.items():
        if all(part.tokens for part in own):
            pairs = zip(own, reference, strict=True)
            parts = [ComparedPart(part.nats, other.nats, part.tokens) for part, other in pairs]
            losses[model] = perplexity_ratio(parts, task.parts).value
    return speeds, {name: losses[of] for name in speeds if (of := models[name].model) in losses}


def on_this_machine(config: Config) -> None:
    """Tune a model, measure the full grid of the same candidates, and print the answer and the time of both."""
    began = time.monotonic()
    with trials_for(config) as trials:
        tuning = Tuning(trials.search_goal(), trials)
        tuning.run()
        measured = sum(bool(samples) for samples in tuning.race.samples.values())
        calls = sum(map(len, tuning.race.samples.values()))
    race_s, began = time.monotonic() - began, time.monotonic()
    with trials_for(config) as trials:
        speeds, losses = full_grid(trials)
    grid_s = time.monotonic() - began
    better = max if tuning.goal.better == "higher" else min
    most = config.most_perplexity or math.inf
    best = better((name for name in speeds if losses.get(name, math.inf) <= most), key=speeds.__getitem__)
    click.echo(f"| | answer | {config.objective} in the grid | perplexity | candidates measured | samples | seconds |")
    click.echo("| --- | --- | --- | --- | --- | --- | --- |")
    rows = (
        (f"search ({tuning.ending})", tuning.winner, measured, calls, race_s),
        ("grid", best, len(speeds), len(speeds) * REPEATS, grid_s),
    )
    for title, name, count, samples, seconds in rows:
        speed = f"{speeds[name]:,.4g}" if name in speeds else "-"
        loss = f"{losses[name] - 1:+.2%}" if name in losses else "-"
        click.echo(f"| {title} | {name} | {speed} | {loss} | {count} | {samples} | {seconds:.0f} |")
    claim = f"; claimed: {tuning.claim.words}" if tuning.claim else ""
    claim += f"; missing: {tuning.missing}" if tuning.missing else ""
    click.echo(f"\nThe search took {race_s / grid_s:.0%} of the grid's time{claim}.")
    if tuning.winner in speeds:
        click.echo(f"Its answer has {speeds[tuning.winner] / speeds[best]:.3f} times the grid's best value.")
    for name in sorted(speeds, key=speeds.__getitem__, reverse=tuning.goal.better == "higher"):
        out = tuning.race.dropped.get(name)
        loss = f", perplexity {losses[name] - 1:+.2%}" if name in losses else ""
        end = out.why if out else tuning.untried.get(name, "in to the end")
        click.echo(f"- {name}: {speeds[name]:,.4g} in the grid{loss}; search: {end}")


@click.command(help=__doc__)
@click.option("--seeds", default=10, show_default=True, type=click.IntRange(1))
@click.option("--real", is_flag=True, help="Tune a model on this machine, and measure the full grid, too.")
@click.option("--model", default=Config.model, show_default=True)
@click.option("--budget", default="5m", show_default=True)
@click.option("--space", default="threads=0", show_default=True, help="See the parameter of tune.")
def main(seeds: int, real: bool, model: str, budget: str, space: str) -> None:
    """Print the table."""
    if real:
        on_this_machine(Config(model=model, budget=budget, space=space))
        return
    click.echo(
        "| machine | best within 5 %, where it was sampled | proven | best so far | proven claims that are false |"
    )
    click.echo("| --- | --- | --- | --- | --- |")
    for title, load in LOADS.items():
        results = [
            search(World(seed, candidates, **load), seconds)
            for candidates in CANDIDATES
            for seconds in BUDGETS
            for seed in range(seeds)
        ]
        reached = [result for result in results if result.reached]
        proven = sum(result.ending == "proven" for result in results)
        unproven = sum(result.ending == "unproven" for result in results)
        false = sum(result.false for result in results)
        right = sum(result.right for result in reached)
        click.echo(
            f"| {title} | {right} of {len(reached)} | {proven} of {len(results)} | {unproven} | {false} of {proven} |"
        )


if __name__ == "__main__":
    main()
