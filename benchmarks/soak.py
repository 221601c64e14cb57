"""Track a study of many scripted scenarios and say what of this process grows: memory, open files, seconds a scenario.

    python -m benchmarks.soak --scenarios 1000

No model is loaded and nothing is timed for real: what is left is what llmtrack itself keeps.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import psutil
from rich.console import Console

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.events import Event
from llmtrack.experiment import Experiment
from llmtrack.measure import bandwidth
from llmtrack.run.executors import InlineExecutor
from llmtrack.run.study import StudyResult, run_study
from llmtrack.scenario import Failure, GenerateTask, Measurement, RepeatPolicy, Scenario, Variant
from llmtrack.tracking.tracker import Tracker


@dataclass(frozen=True)
class Reading:
    """What the process holds after a number of scenarios: MiB of memory, open files, seconds since the beginning."""

    scenarios: int
    rss_mib: float
    files: int
    seconds: float


def soak(tracker: Tracker, scenarios: int, every: int) -> tuple[StudyResult, list[Reading]]:
    """Run a study of scripted scenarios; return how it ended and what was read every so many of them."""
    process, began, readings, ended = psutil.Process(), time.monotonic(), list[Reading](), 0
    bandwidth.copy_bandwidth = lambda device: 1e6  # type: ignore[assignment]  # 512 MiB that are not llmtrack's own

    class Counting(InlineExecutor):
        def run(self, group: Sequence[Scenario], emit: Callable[[Event], None]) -> None:
            def count(event: Event) -> None:
                nonlocal ended
                emit(event)
                if isinstance(event, (Measurement, Failure)):
                    ended += 1
                    if ended % every == 0:
                        rss = process.memory_info().rss / 2**20
                        readings.append(Reading(ended, rss, process.num_fds(), time.monotonic() - began))

            super().run(group, count)

    clock = FakeClock()
    executor = Counting(lambda variant: ScriptedEngine(clock, Script(0.03, 0.005)), clock)
    result = run_study(
        _experiment(scenarios),
        tracker=tracker,
        executor=executor,
        console=Console(file=io.StringIO(), width=200),
    )
    return result, readings


def _experiment(scenarios: int) -> Experiment:
    base = Scenario(
        "s", Variant("synthetic:tiny", device="cpu"), GenerateTask(("abcd",)), RepeatPolicy(1, 2, 0.0, 1.0, 2)
    )
    return Experiment(
        name="soak",
        question="What grows?",
        scenarios=tuple(
            replace(base, name=f"s{number}", task=GenerateTask(("abcd",), max_new_tokens=2 + number))
            for number in range(scenarios)
        ),
        plots=lambda runs, series: {},
        reading=lambda runs: [f"{len(runs)} scenarios."],
    )


@click.command()
@click.option("--scenarios", default=1000, show_default=True)
@click.option("--every", default=100, show_default=True)
def main(scenarios: int, every: int) -> None:
    """Print a row every so many scenarios."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        began = time.monotonic()
        tracker = Tracker.open(f"sqlite:///{Path(folder, 'mlflow.db')}")
        result, readings = soak(tracker, scenarios, every)
        click.echo("scenarios  memory MiB  open files  s")
        for each in readings:
            click.echo(f"{each.scenarios:>9}  {each.rss_mib:>10.0f}  {each.files:>10}  {each.seconds:.1f}")
        click.echo(
            f"measured {result.measured}, failed {result.failed}, report problems {list(result.problems)}"
        )
        click.echo(f"{time.monotonic() - began:.1f} s in all, {len(tracker.spool.names())} left in the spool")


if __name__ == "__main__":
    main()
