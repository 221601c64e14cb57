"""Does the race find what a full grid finds, and in what share of its time? On simulated speeds, noise and drift.

    python -m benchmarks.tune --seeds 100

Prints for each kind of machine how often the race and the grid chose the best of 24, or one within the margin, the race's share of the grid's
measuring time (the winner's fresh measurements included), and how often a race of equals claimed to beat the baseline.
"""

from __future__ import annotations

import math

import click
import numpy as np

from llmtrack.decide.differences import difference, judge
from llmtrack.decide.racing import Race, Rules, Sample, duel, run_race

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


@click.command(help=__doc__)
@click.option("--seeds", default=100, show_default=True, type=click.IntRange(1))
def main(seeds: int) -> None:
    """Print the table."""
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
