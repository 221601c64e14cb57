"""Run an experiment from the command line: open the tracker, run the study, turn its end into an exit code."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from llmtrack.errors import LlmtrackError
from llmtrack.experiment import Experiment
from llmtrack.output import protected_output
from llmtrack.report.console import make_console, say
from llmtrack.report.escape import on_one_line
from llmtrack.run.executors import Executor, InlineExecutor, ProcessExecutor
from llmtrack.run.settings import RunOptions
from llmtrack.run.study import run_study
from llmtrack.tracking.tracker import Study, Tracker

INTERRUPTED, TERMINATED, USAGE = 130, 143, 2


class Terminated(BaseException):
    """SIGTERM arrived."""


def run_experiment(experiment: Experiment, settings: RunOptions) -> NoReturn:
    """Run an experiment as a study and exit with its code (0 all good, 1 some failed, 2 usage error)."""
    console = make_console(outlive=True)
    with exit_codes(console), open_executor(settings) as executor:
        tracker = open_tracker(settings)
        result = run_study(
            experiment, tracker=tracker, executor=executor, console=console, resume=settings.resume
        )
        say_where(console, tracker, result.study)
        sys.exit(result.exit_code)


def open_tracker(settings: RunOptions) -> Tracker:
    """Open the tracker that the settings name."""
    return Tracker.open(settings.tracking_uri, settings.experiment_name)


@contextmanager
def open_executor(settings: RunOptions) -> Iterator[Executor]:
    """Open the executor that the settings name, and close it at the end."""
    executor: Executor = InlineExecutor() if settings.executor == "inline" else ProcessExecutor()
    try:
        yield executor
    finally:
        executor.close()


@contextmanager
def exit_codes(console: Console) -> Iterator[None]:
    """Turn a user's errors into one line and exit code 2, and signals into their exit codes."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with protected_output():
            yield
    except LlmtrackError as error:
        fail(console, error)
    except KeyboardInterrupt:
        console.print("interrupted: what was measured is tracked")
        sys.exit(INTERRUPTED)
    except Terminated:
        console.print("terminated: what was measured is tracked")
        sys.exit(TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, before)


def fail(console: Console, error: LlmtrackError) -> NoReturn:
    """Print a user's error and exit with code 2."""
    console.print(Text.assemble(("error: ", "bold red"), on_one_line(str(error))), soft_wrap=True)
    sys.exit(USAGE)


def say_where(console: Console, tracker: Tracker, study: Study) -> None:
    """Say where the runs are and how to look at them, or that they wait in the spool."""
    if tracker.offline:
        say(
            console,
            "The tracking server could not be reached: the measurements are kept; send them with: llmtrack sync, "
            f"then make the table and plots with: llmtrack report {study.study_id}",
        )
        return
    uri = tracker.display_uri
    say(console, f"Tracked in {uri}")
    server = uri if uri.startswith("http") else "http://127.0.0.1:5000"
    if server != uri:
        say(console, f"See the runs: mlflow ui --backend-store-uri {shlex.quote(uri)}")
    # MLflow opens an experiment at its traces unless told that this is model training.
    page = f"{server.rstrip('/')}/#/experiments/{tracker.experiment_id}/runs?workflowType=machine_learning"
    say(console, f"{'  and open' if server != uri else 'See the runs:'} {page}")
