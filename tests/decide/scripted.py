"""Studies measured on scripted engines, with known times, noise and slowdown."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from unittest.mock import patch

from rich.console import Console

from experiments import prompt_length
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import Settings
from llmtrack.run.study.study import StudyResult, run_study
from llmtrack.spec.options import config_from
from llmtrack.tracking.write.tracker import Tracker

REPEATS = 8


def noisy_scripts(seed: int, slower: float = 1.0, noise: float = 0.01) -> list[Script]:
    """100 scripts of about 30 ms to the first token and 5 ms a step, each a little different."""
    generator = random.Random(seed)
    return [
        Script(0.030 * slower * factor, 0.005 * slower * factor)
        for factor in (generator.lognormvariate(0, noise) for _ in range(100))
    ]


def measure(tracker: Tracker, seed: int, slower: float = 1.0) -> StudyResult:
    """Track a study of two prompts with scripted times."""
    clock = FakeClock()
    scripts = noisy_scripts(seed, slower)
    return track(tracker, InlineExecutor(lambda variant: ScriptedEngine(clock, *scripts), clock), (4, 8))


def track(tracker: Tracker, executor: InlineExecutor, lengths: tuple[int, ...]) -> StudyResult:
    """Track a study of prompts of some lengths."""
    settings = Settings(
        model="synthetic:tiny", device="cpu", max_new_tokens=5, min_repeats=REPEATS, min_seconds=0.0, max_seconds=2.0
    )
    experiment = prompt_length.build(config_from(prompt_length.Config, settings, lengths=lengths))
    console = Console(file=io.StringIO())
    # What is decided needs no pictures, which take most of the time.
    with patch("llmtrack.report.page.reports.write_report", return_value={}):
        return run_study(
            replace(experiment, plots=lambda runs, series: {}),
            tracker=tracker,
            executor=executor,
            console=console,
        )
