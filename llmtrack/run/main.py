"""Run an experiment from the command line: open the tracker, run the study, return an exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any, NoReturn, get_args

from rich.console import Console

from llmtrack.errors import LlmtrackError, UsageError, actionable
from llmtrack.experiment import Experiment
from llmtrack.host.console import on_one_line, print_text, protected_output
from llmtrack.host.entry_points import (
    EXECUTOR_POINTS,
    find_extension,
    instance_of,
    load_extension,
    make_checked,
    unusable,
)
from llmtrack.host.formatting import list_some
from llmtrack.host.libraries import gc_paused
from llmtrack.host.processes import when_launcher_ends
from llmtrack.host.signals import Terminated, end_on_signal, ignore_signals_at_exit
from llmtrack.measure.best_effort import BestEffort
from llmtrack.report.page.html import page_template
from llmtrack.report.plots import drawing
from llmtrack.report.terminal import make_console, print_line
from llmtrack.run.executors.executor import METHODS, Executor, ManyAtOnce
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.pool import Pool
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.executors.timeouts import Patience
from llmtrack.run.settings import HereOptions, RunOptions
from llmtrack.run.study.study import StudyResult, run_study
from llmtrack.run.suite import SuiteResult
from llmtrack.spec.events import Emit, Event
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.tracking.read.artifacts import local_artifact
from llmtrack.tracking.views import existing_views, run_link, runs_link
from llmtrack.tracking.write.amend import explain_refusal
from llmtrack.tracking.write.running import close_abandoned
from llmtrack.tracking.write.spool import Spool, to_stderr
from llmtrack.tracking.write.tracker import Study, Tracker

USAGE = 2
MLFLOW_DEFAULT, OWN_DEFAULT = "Default", "llmtrack"
"""Default MLflow experiments of `mlflow run` and of llmtrack."""


@dataclass(frozen=True)
class Performed:
    """Result of an experiment or suite.

    Attributes:
        experiment: None for a suite.
    """

    tracker: Tracker
    result: StudyResult | SuiteResult
    experiment: Experiment | None = None


def perform(experiment: Experiment, settings: RunOptions, console: Console) -> Performed:
    """Run an experiment as a study."""
    with open_executor(settings) as executor:
        tracker = open_tracker(settings)
        result = run_study(experiment, tracker=tracker, executor=executor, console=console, resume=settings.resume)
        return Performed(tracker, result, experiment)


def run_experiment(experiment: Experiment, settings: RunOptions) -> NoReturn:
    """Run an experiment as a study and exit with its code (0 all measured, 1 some failed); see also `exit_codes`."""
    console = make_console(outlive=True)
    with open_executors(settings) as executors:
        tracker = open_tracker(settings)
        codes = []
        for executor in executors:
            print_hardware(console, executor, executors)
            result = run_study(experiment, tracker=tracker, executor=executor, console=console, resume=settings.resume)
            print_location(console, tracker, result.study)
            codes.append(result.exit_code)
        sys.exit(max(codes))


def print_hardware(console: Console, executor: Executor, executors: Sequence[Executor]) -> None:
    """Announce the hardware measured on next, if there are several kinds with a study and table each."""
    if len(executors) > 1 and isinstance(executor, ManyAtOnce):
        print_line(console, f"\nOn {executor.where}:")


def open_tracker(settings: HereOptions) -> Tracker:
    """Open the tracker, and end runs left behind by killed processes of this machine.

    It also imports the reporting modules while the worker imports its own; later, that would disturb measurements.
    """
    with gc_paused():
        tracker = Tracker.open(settings.tracking_uri, settings.experiment_name, traces=settings.traces)
        # The part of the report that needs a missing module reports it.
        with contextlib.suppress(Exception):
            drawing.preload()
            page_template()
    closed = [] if tracker.offline else BestEffort().get("", lambda: close_abandoned(tracker.tracking_uri), [])
    if closed:
        to_stderr(f"ended runs left RUNNING by killed processes: {'; '.join(closed)}")
    return tracker


def make_executor(settings: HereOptions) -> Executor:
    """Return the executor of the settings; the caller closes it.

    Raises:
        UsageError: the settings ask for several, one per kind of hardware.
    """
    _check_single(settings)
    return make_executors(settings)[0]


def _check_single(settings: HereOptions) -> None:
    if isinstance(settings, RunOptions) and settings.nodes == "each":
        raise UsageError("nodes=each makes a study for each kind of hardware: use it on the command line")


def make_executors(settings: HereOptions) -> Sequence[Executor]:
    """Return the executors of the settings, one per kind of hardware; closing one closes all.

    A worker on this machine is already starting.
    """
    if settings.executor in EXECUTORS:
        return EXECUTORS[settings.executor](settings, Patience(settings.time_limit))
    point = find_extension(EXECUTOR_POINTS, settings.executor)
    if point is None:
        raise UsageError(f"unknown executor {settings.executor!r}")
    return [extension_executor(point, settings)]


def extension_executor(point: EntryPoint, settings: HereOptions) -> Executor:
    """Create a plug-in's executor.

    Raises:
        ExtensionError: it is unusable.
    """
    make = load_extension(point)
    if not callable(make):
        raise unusable(point, f"it is a {type(make).__name__}, and not a function make(settings)")
    executor: Executor = make_checked(point, "make", partial(make, settings), _missing_methods, _ANSWERS)
    with contextlib.suppress(AttributeError, TypeError):
        executor.run = partial(_run_checked, executor.run, point)  # type: ignore[method-assign]
    return executor


def _missing_methods(executor: object) -> str:
    missing = [name for name in METHODS if not callable(getattr(executor, name, None))]
    return f"the executor lacks {', '.join(missing)}" if missing else ""


def _run_checked(run: Callable[..., None], point: EntryPoint, scenarios: Sequence[Scenario], emit: Emit) -> None:
    """Run a plug-in's executor; name it if it emits something else than events, or leaves a scenario out."""
    pending = {scenario.name for scenario in scenarios}
    expected = instance_of("an event such as a Measurement or a Failure", *get_args(Event))

    def checked(event: Event) -> None:
        if reason := expected.problem("run", event):
            raise unusable(point, reason.replace("returned", "emitted"))
        if isinstance(event, (Measurement, Failure)):
            pending.discard(event.scenario.name)
        emit(event)

    run(scenarios, checked)
    if pending:
        raise unusable(point, f"run emitted neither a Measurement nor a Failure of {list_some(sorted(pending))}")


_ANSWERS = {
    "machine": instance_of("a mapping of facts", Mapping),
    "identify": instance_of("a mapping of tags", Mapping),
}
"""What the methods of an executor return."""


def _process(settings: HereOptions, patience: Patience) -> Sequence[Executor]:
    executor = ProcessExecutor(patience)
    executor.begin()
    return [executor]


def _ray(settings: Any, patience: Patience) -> Sequence[Executor]:
    from llmtrack.run.executors.ray.executor import open_cluster

    return open_cluster(settings.address, settings.nodes, settings.resources, patience)


EXECUTORS: dict[str, Callable[[Any, Patience], Sequence[Executor]]] = {
    "process": _process,
    "inline": lambda settings, patience: [InlineExecutor(time_limit=patience.time_limit)],
    "ray": _ray,
}
"""Executor factories by name; entry points add others."""


@contextmanager
def open_executor(settings: RunOptions) -> Iterator[Executor]:
    """Open the executor of the settings, and close it at the end."""
    _check_single(settings)
    with open_executors(settings) as (executor,):
        yield executor


@contextmanager
def open_executors(settings: RunOptions) -> Iterator[Sequence[Executor]]:
    """Open the executors of the settings, and close them at the end; a pool of processes keeps compared models loaded."""
    executors = make_executors(settings)
    if settings.executor == "process":
        first = [*executors]
        executors = [Pool(lambda: first.pop() if first else make_executor(settings))]
    if settings.executor == "inline" and settings.time_limit:
        to_stderr(
            "time_limit is kept between calls only with executor=inline: what hangs in this process cannot be ended"
        )
    try:
        yield executors
    finally:
        for executor in executors:
            executor.close()


@contextmanager
def exit_codes(console: Console) -> Iterator[None]:
    """Turn user errors into one line and exit code 2, and signals into their exit codes; wraps a whole command.

    Under `mlflow run`, the end of that program counts as a signal, too.
    """
    with contextlib.ExitStack() as stack, end_on_signal():
        if "MLFLOW_RUN_ID" in os.environ:
            stack.callback(when_launcher_ends(lambda: os.kill(os.getpid(), signal.SIGTERM)))
        try:
            with protected_output():
                yield
        except Exception as error:
            reason = actionable(error)
            if reason is None:
                raise
            explain_refusal(reason)
            fail(error if isinstance(error, LlmtrackError) else UsageError(reason))
        except KeyboardInterrupt:
            end_early(console, "interrupted", signal.SIGINT)
        except Terminated as signalled:
            end_early(console, "terminated", signalled.number)


def end_early(console: Console, word: str, number: int) -> NoReturn:
    """Report that a signal ended the work and what remains in the spool; exit with the signal's code."""
    ignore_signals_at_exit()
    with contextlib.suppress(OSError):  # the terminal may be gone
        print_line(
            console,
            f"{word}: what was measured is tracked; the same command with resume=true goes on from there",
        )
        spool = Spool()
        if waiting := len(spool.names()):
            print_line(console, f"{waiting} record(s) wait in {spool.folder}; send them with: llmtrack sync")
    sys.exit(128 + number)


def fail(error: LlmtrackError) -> NoReturn:
    """Print a user error to standard error and exit with code 2."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        print_text(f"error: {on_one_line(str(error))}", err=True)
    sys.exit(USAGE)


def print_location(console: Console, tracker: Tracker, study: Study) -> None:
    """Print where the runs are and how to view them, or that they wait in the spool."""
    if tracker.offline:
        print_line(
            console,
            "The tracking server could not be reached: the measurements are kept; send them with: llmtrack sync, "
            f"then make the table and plots with: llmtrack report {study.study_id}",
        )
        return
    uri = tracker.delivery.display_uri
    experiment = tracker.delivery.experiment
    print_line(console, f"Tracked in {uri}, MLflow experiment {experiment}")
    if experiment == MLFLOW_DEFAULT:
        print_line(
            console,
            f"mlflow run put it there: with --experiment-name {OWN_DEFAULT} it is beside what `llmtrack run` tracks",
        )
    server = uri if uri.startswith("http") else "http://127.0.0.1:5000"
    if server != uri:
        print_line(console, f"See the runs: mlflow ui --backend-store-uri {shlex.quote(uri)}")
    root, views = server.rstrip("/"), existing_views(study.experiment_id or "", tracker.tracking_uri)
    experiment_id, view = str(tracker.delivery.experiment_id), study.study_id if study.study_id in views else ""
    link = runs_link(root, experiment_id, view)
    print_line(console, f"{'  and open' if server != uri else 'See the runs:'} {link}")
    if view:
        print_line(console, f"Its charts: {runs_link(root, experiment_id, study.study_id, charts=True)}")
    if study.run_id is not None:
        print_line(console, f"Its page: {run_link(root, experiment_id, study.run_id)}")
    if study.run_id is not None and not tracker.delivery.waiting(study.study_id):
        report = local_artifact(study.run_id, "report.html", tracker.tracking_uri)
        remote = run_link(root, experiment_id, study.run_id, "report.html")
        print_line(console, f"Its report: {remote if report is None else report}")
