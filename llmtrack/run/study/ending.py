"""How a study or a suite ends: its report is made from what was tracked, printed and kept, and its run is finished."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from llmtrack.host.console import console_of
from llmtrack.host.words import plural
from llmtrack.report.parts import Parts
from llmtrack.report.place import Place
from llmtrack.report.study import Written, say_incomplete
from llmtrack.tracking.tracker import Study, Tracker


def end_study(
    study: Study, tracker: Tracker, console: Console, failed: bool, write: Callable[[Place], Written]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make, print and track the report of a study or suite, and finish its run.

    What of the report fails is a warning: the study has ended as its measurements did.

    Args:
        study: its identity in the tracking store.
        tracker: where it is tracked; while the store cannot be reached there is no report.
        console: where to print.
        failed: whether a scenario could not be measured.
        write: reads the runs back, prints, and writes files.

    Returns:
        What the runs say, and what of the report could not be made, and why.
    """
    outcome = "failed" if failed else "finished"
    if tracker.offline:
        run_id = tracker.finish_study(study, outcome)
        if tracker.offline:
            return (), ()
        # It answers again, just now.
        study = replace(study, run_id=run_id or study.run_id, experiment_id=tracker.delivery.experiment_id)
    parts, written = Parts(), Written()
    with ExitStack() as stack:
        with parts.part("report"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # On stderr is progress: whoever asks for it so is returned the report, and shows it.
            shown = console_of(file=io.StringIO(), width=200) if console.stderr else console
            place = Place(study.run_id, study.experiment_id, tracker.tracking_uri, folder, shown, parts)
            written = write(place)
        tracker.finish_study(
            study,
            outcome,
            note=written.note,
            files=written.files,
            metrics=written.metrics,
            warnings=parts.problems,
        )
    waiting = 0 if tracker.offline else tracker.delivery.waiting(study.study_id)
    if waiting:
        parts.problems.append(
            f"{plural(waiting, 'record')} of it could not be sent, and what is kept waits in {tracker.spool.folder}"
        )
    say_incomplete(console, study.study_id, parts.problems, kept=tracker.offline or waiting > 0)
    return written.reading, tuple(parts.problems)
