"""End a study or suite: build its report from the tracked runs, print and store it, and finish its run."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from llmtrack.host.console import console_of
from llmtrack.host.formatting import plural
from llmtrack.report.page.place import Parts, Place
from llmtrack.report.page.study import Written, say_incomplete
from llmtrack.tracking.write.tracker import Study, Tracker


def end_study(
    study: Study, tracker: Tracker, console: Console, failed: bool, write: Callable[[Place], Written]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Build, print and track the report of a study or suite, and finish its run.

    A failure of the report is only a warning: the study ends as its measurements did.

    Args:
        study: identity in the tracking store.
        tracker: there is no report while its store is unreachable.
        failed: whether a scenario failed.
        write: read the runs, print, and write files.

    Returns:
        The reading, and the parts of the report that failed, with the reason.
    """
    outcome = "failed" if failed else "finished"
    if tracker.offline:
        run_id = tracker.finish_study(study, outcome)
        if tracker.offline:
            return (), ()
        # The store is reachable again.
        study = replace(study, run_id=run_id or study.run_id, experiment_id=tracker.delivery.experiment_id)
    parts, written = Parts(), Written()
    with ExitStack() as stack:
        with parts.part("report"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # A console on stderr only shows progress; its caller displays the report itself.
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
