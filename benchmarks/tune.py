"""Does the race find what a full grid finds, and in what share of its time? On simulated speeds, noise and drift, or for real.

    python -m benchmarks.tune --seeds 100
    python -m benchmarks.tune --real --model packaged:smollm2 --budget 5m --space threads=0

Prints for each kind of machine how often the race and the grid chose the best of 24, or one within the margin, the race's share of the grid's
measuring time (the winner's fresh measurements included), and how often a race of equals claimed to beat the baseline.
With `--real` a model is tuned on this machine, and each of the same ways is then measured and scored in full; nothing is tracked.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click
import numpy as np
from rich.console import Console

from experiments.tune import Config, asked_of, space_of
from llmtrack.decide.bounded import ComparedPart, perplexity_ratio
from llmtrack.decide.differences import difference, judge
from llmtrack.decide.racing import Race, Rules, Sample, duel, run_race
from llmtrack.decide.tuning import PartScore, Tuning
from llmtrack.run.hands import Hands
from llmtrack.run.journal import Journal
from llmtrack.run.pool import Pool
from llmtrack.run.process_executor import ProcessExecutor
from llmtrack.run.progress import StudyProgress

CANDIDATES, REPEATS, MARGIN = 24, 6, 0.05
MACHINES = {
    "noise 1 %": {"noise": 0.01},
    "noise 3 %": {"noise": 0.03},
    "noise 3 %, drift 40 %": {"noise": 0.03, "drift": 0.4},
    "noise 3 %, 1 of 100 calls takes twice as long": {"noise": 0.03, "outliers": 0.01},
    "noise 5 %": {"noise": 0.05},
}


class Machine:
    """Candidates of known speeds; a sample takes 1 / speed seconds.

    Args:
        speeds: by candidate.
        seed: of the noise.
        noise: standard deviation of a sample's logarithm.
        drift: by how much the clock speed comes and goes.
        outliers: share of the samples that take twice as long.
    """

    def __init__(
        self, speeds: dict[str, float], seed: int, noise: float, drift: float = 0.1, outliers: float = 0.0
    ) -> None:
        self.speeds, self.noise, self.drift, self.outliers = speeds, noise, drift, outliers
        self.now = 0.0
        self.random = np.random.default_rng(seed)

    def __call__(self, name: str) -> Sample:
        """Measure a candidate once."""
        wave = self.drift * math.sin(self.now / 20)
        value = self.speeds[name] * math.exp(self.noise * self.random.standard_normal() + wave)
        value /= 2 if self.random.random() < self.outliers else 1
        self.now += 1 / value
        return Sample(value, 1 / value)


def spread(seed: int, most: float = 4.0) -> dict[str, float]:
    """Return speeds between 1 and `most` times the slowest."""
    drawn = np.exp(np.random.default_rng(seed).uniform(0, math.log(most), CANDIDATES))
    return {f"c{number}": float(speed) for number, speed in enumerate(drawn)}


def grid(machine: Machine) -> tuple[str, float]:
    """Return what a grid chooses, one candidate after the other, and how long it takes."""
    began = machine.now
    medians = {
        name: float(np.median([machine(name).value or 0.0 for _ in range(REPEATS)]))
        for name in machine.speeds
    }
    return max(medians, key=medians.__getitem__), machine.now - began


def tuned(machine: Machine, seconds: float) -> tuple[str, bool, float]:
    """Return what tuning chooses, whether it claims to beat the baseline, and how long it takes."""
    began = machine.now
    race = Race(list(machine.speeds), rules=Rules(margin=MARGIN))
    reserve = 5 * (1 / machine.speeds["c0"] + 1 / max(machine.speeds.values()))
    run_race(race, machine, seconds - reserve)
    winner = race.choice() or "c0"
    claimed = False
    if winner != "c0":
        fresh = duel(("c0", winner), machine, 0.0)
        before, after = (float(np.median(fresh[name])) for name in ("c0", winner))
        (found,) = judge([difference("tokens_per_sec", before, after, fresh["c0"], fresh[winner])])
        claimed = found.verdict == "better"
    return winner, claimed, machine.now - began


@contextmanager
def hands_for(config: Config) -> Iterator[Hands]:
    """Yield what measures and scores the ways to run a model on this machine, with no model loaded yet."""
    pool = Pool(ProcessExecutor)
    try:
        space = space_of(config, pool.machine())
        asked = asked_of(config)
        with (
            tempfile.TemporaryDirectory() as folder,
            StudyProgress(Console(stderr=True), len(space.candidates)) as progress,
        ):
            journal = Journal(Path(folder) / "journal.jsonl", False)
            began = time.monotonic()
            yield Hands(space.candidates, asked, pool, progress, journal, Path(folder), time.monotonic, began)
    finally:
        pool.close()


def full_grid(hands: Hands) -> tuple[dict[str, float], dict[str, float]]:
    """Measure every candidate as often as a grid does, one after the other, and score all of the text by each model.

    Returns:
        The median of the objective, and perplexity over the baseline's, of those that could be measured, and scored.
    """
    task = hands.task()
    speeds: dict[str, float] = {}
    scores: dict[str, list[PartScore]] = {}
    for name in task.names:
        seen = [hands.measure(name, math.inf).values.get(task.objective) for _ in range(REPEATS)]
        found = [value for value in seen if value is not None]
        if len(found) == REPEATS:
            speeds[name] = median(found)
            model = task.model_of[name]
            if model not in scores:
                scores[model] = [hands.score(name, part, math.inf) for part in range(task.parts)]
        hands.dropped(name)
    reference = scores[task.model_of[task.baseline]]
    losses = {}
    for model, own in scores.items():
        if all(each.tokens for each in own):
            pairs = zip(own, reference, strict=True)
            parts = [ComparedPart(each.nats, other.nats, each.tokens) for each, other in pairs]
            losses[model] = perplexity_ratio(parts, task.parts).value
    return speeds, {name: losses[of] for name in speeds if (of := task.model_of[name]) in losses}


def on_this_machine(config: Config) -> None:
    """Tune a model, measure the full grid of the same ways, and print the answer and the time of both."""
    began = time.monotonic()
    with hands_for(config) as hands:
        tuning = Tuning(hands.task(), hands)
        tuning.run()
        measured = sum(bool(samples) for samples in tuning.race.samples.values())
        calls = sum(map(len, tuning.race.samples.values()))
    race_s, began = time.monotonic() - began, time.monotonic()
    with hands_for(config) as hands:
        speeds, losses = full_grid(hands)
    grid_s = time.monotonic() - began
    better = max if tuning.task.better == "higher" else min
    most = config.most_perplexity or math.inf
    best = better((name for name in speeds if losses.get(name, math.inf) <= most), key=speeds.__getitem__)
    click.echo(
        f"| | answer | {config.objective} in the grid | perplexity | ways measured | samples | seconds |"
    )
    click.echo("| --- | --- | --- | --- | --- | --- | --- |")
    rows = (
        ("race", tuning.winner, measured, calls, race_s),
        ("grid", best, len(speeds), len(speeds) * REPEATS, grid_s),
    )
    for title, name, ways, samples, seconds in rows:
        speed = f"{speeds[name]:,.4g}" if name in speeds else "-"
        loss = f"{losses[name] - 1:+.2%}" if name in losses else "-"
        click.echo(f"| {title} | {name} | {speed} | {loss} | {ways} | {samples} | {seconds:.0f} |")
    claim = f"; claimed: {tuning.claim.words}" if tuning.claim else ""
    click.echo(f"\nThe race took {race_s / grid_s:.0%} of the grid's time{claim}.")
    if tuning.winner in speeds:
        click.echo(f"Its answer has {speeds[tuning.winner] / speeds[best]:.3f} times the grid's best value.")
    for name in sorted(speeds, key=speeds.__getitem__, reverse=tuning.task.better == "higher"):
        out = tuning.race.dropped.get(name)
        loss = f", perplexity {losses[name] - 1:+.2%}" if name in losses else ""
        click.echo(
            f"- {name}: {speeds[name]:,.4g} in the grid{loss}; race: {out.why if out else 'in to the end'}"
        )


@click.command(help=__doc__)
@click.option("--seeds", default=100, show_default=True, type=click.IntRange(1))
@click.option("--real", is_flag=True, help="Tune a model on this machine, and measure the full grid, too.")
@click.option("--model", default=Config.model, show_default=True)
@click.option("--budget", default="5m", show_default=True)
@click.option("--space", default="threads=0", show_default=True, help="As tune takes it.")
def main(seeds: int, real: bool, model: str, budget: str, space: str) -> None:
    """Print the table."""
    if real:
        on_this_machine(Config(model=model, budget=budget, space=space))
        return
    click.echo("| machine | race: best or within 5 % | grid | race's time, mean (most) | A/A claims |")
    click.echo("| --- | --- | --- | --- | --- |")
    for title, how in MACHINES.items():
        found, by_grid, claims, shares = 0, 0, 0, []
        for seed in range(seeds):
            speeds = spread(seed)
            enough = max(speeds.values()) / (1 + MARGIN)
            chosen, seconds = grid(Machine(speeds, seed, **how))
            by_grid += speeds[chosen] >= enough
            chosen, _, spent = tuned(Machine(speeds, seed + 10_000, **how), seconds / 2)
            found += speeds[chosen] >= enough
            shares.append(spent / seconds)
            equals = dict.fromkeys(speeds, 1.0)
            claims += tuned(Machine(equals, seed, **how), CANDIDATES * REPEATS / 2)[1]
        click.echo(
            f"| {title} | {found} of {seeds} | {by_grid} of {seeds} | {np.mean(shares):.0%} ({max(shares):.0%}) | "
            f"{claims} of {seeds} |"
        )


if __name__ == "__main__":
    main()
