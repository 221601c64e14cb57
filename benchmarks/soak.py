"""Track a study of many scripted scenarios and report what grows in this process: memory, open files, seconds per scenario.

    python -m benchmarks.soak --scenarios 1000
    python -m benchmarks.soak --scenarios 1000 --untracked    # of measuring alone, in seconds

No model is loaded and nothing is really timed: what remains is llmtrack's own resource use.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import psutil
from rich.console import Console

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.experiment import Experiment
from llmtrack.measure import ceilings
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.study.study import StudyResult, run_study
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.tracking.write.tracker import Study, Tracker


@dataclass(frozen=True)
class Reading:
    """Resources of the process after a number of scenarios: MiB of resident memory, descriptors, seconds since the
    start.
    """

    scenarios: int
    rss_mib: float
    files: int
    seconds: float


class Untracked:
    """A tracker that discards everything, as if its store were away."""

    offline = True
    tracking_uri = "sqlite://"
    # Only studies that alternate between models store measurements beside the spool.
    spool = SimpleNamespace(folder=Path(os.devnull) / "spool")

    def start_study(self, *arguments: object, **settings: object) -> Study:
        """Begin nothing."""
        return cast("Study", SimpleNamespace(study_id="soak", run_id=None, experiment_id=None))

    def log(self, study: Study, outcome: Outcome, remark: str = "", note: str = "") -> None:
        """Discard the outcome of a scenario."""

    def has_finished(self, study: Study) -> bool:
        """Return True: there is nothing to finish."""
        return True

    def finish_study(self, study: Study, outcome: str, **settings: object) -> None:
        """End nothing."""


def soak(tracker: Tracker | Untracked, scenarios: int, every: int) -> tuple[StudyResult, list[Reading]]:
    """Run a study of scripted scenarios; return its result and periodic readings."""
    process, began, readings, ended = psutil.Process(), time.monotonic(), list[Reading](), 0
    ceilings.copy_bandwidth = lambda device: 1e6  # 512 MiB that are not llmtrack's own

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
        experiment(scenarios),
        tracker=cast("Tracker", tracker),
        executor=executor,
        console=Console(file=io.StringIO(), width=200),
    )
    return result, readings


def experiment(scenarios: int, name: str = "soak") -> Experiment:
    """Return an experiment of so many scripted scenarios."""
    base = Scenario(
        "s", Variant("synthetic:tiny", device="cpu"), GenerateTask(("abcd",)), RepeatPolicy(1, 2, 0.0, 1.0, 2)
    )
    return Experiment(
        name=name,
        question="What grows?",
        scenarios=tuple(
            replace(base, name=f"s{number}", task=GenerateTask((f"{number:04}",), max_new_tokens=4))
            for number in range(scenarios)
        ),
        plots=lambda runs, series: {},
        reading=lambda runs: [f"{len(runs)} scenarios."],
    )


@click.command()
@click.option("--scenarios", default=1000, show_default=True)
@click.option("--every", default=100, show_default=True)
@click.option("--untracked", is_flag=True, help="Write nothing, and make no report.")
def main(scenarios: int, every: int, untracked: bool) -> None:
    """Print a row every so many scenarios."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        began = time.monotonic()
        uri = f"sqlite:///{Path(folder, 'mlflow.db')}"
        tracker = Untracked() if untracked else Tracker.open(uri)
        result, readings = soak(tracker, scenarios, every)
        click.echo("scenarios  memory MiB  descriptors  s")
        for reading in readings:
            click.echo(f"{reading.scenarios:>9}  {reading.rss_mib:>10.0f}  {reading.files:>11}  {reading.seconds:.1f}")
        click.echo(f"measured {result.measured}, failed {result.failed}, report problems {list(result.problems)}")
        left = 0 if isinstance(tracker, Untracked) else len(tracker.spool.names())
        click.echo(f"{time.monotonic() - began:.1f} s in all, {left} left in the spool")


if __name__ == "__main__":
    main()
