"""Claim work, so that no two processes measure the same study unknowingly, and end the runs of killed processes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from llmtrack.errors import UsageError
from llmtrack.host.console import on_one_line
from llmtrack.tracked.run import KILLED
from llmtrack.tracking import store
from llmtrack.tracking.mlflow_experiments import experiment_names
from llmtrack.tracking.owner import ABANDONED, TAG, host_id, is_gone
from llmtrack.tracking.read.source import read_pages
from llmtrack.tracking.write.push import now_ms

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from llmtrack.tracking.write.tracker import Tracker

WORK_TAG = "llmtrack.work"
_WAIT_S = 60.0
"""Maximum wait for a process that is just opening its study; any responsive store is faster."""

Opened = TypeVar("Opened")


def open_claimed(
    tracker: Tracker, work: str, resume: bool, say: Callable[[str], None], start: Callable[[], Opened]
) -> Opened:
    """Open the study of a piece of work, unless it would resume what another process is measuring.

    A lock makes checking and opening one step for this machine. Whether a process of another machine is alive is unknown:
    `say` prints a warning, because a lost machine must not block its work for ever.

    Args:
        work: identifies what is measured; the study's run has it in the tag `WORK_TAG`.
        resume: measure only the rest; otherwise everything is measured, whoever else does so.

    Raises:
        UsageError: a process of this machine is measuring it.
        TrackingError: the store cannot be read.
    """
    if not resume or tracker.offline:
        return start()
    from filelock import Timeout

    try:
        with store.user_lock("claim", tracker.tracking_uri, work).acquire(timeout=_WAIT_S):
            _refuse_claimed(work, tracker.tracking_uri, say)
            return start()
    except Timeout:
        raise UsageError(
            f"another process has been opening this study for {_WAIT_S:.0f} s: try again when it has ended"
        ) from None


def _refuse_claimed(work: str, tracking_uri: str, say: Callable[[str], None]) -> None:
    for run in _running(store.open_existing(tracking_uri), f"tags.`{WORK_TAG}` = '{work}'"):
        if is_gone(run.data.tags.get(TAG, "")):
            continue
        host, _, pid, *_ = [*run.data.tags.get(TAG, "").split(" "), "", "", ""]
        start = datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc)
        study = f"{on_one_line(run.info.run_name)!r}, since {start:%Y-%m-%d %H:%M:%S} UTC"
        if host == host_id():
            raise UsageError(
                f"process {pid} is already measuring this study ({study}): "
                "wait until it has ended, or end it, and repeat the command"
            )
        say(f"  another machine is measuring this study, or was lost while it did ({study})")


def close_abandoned(tracking_uri: str | None = None) -> list[str]:
    """End the RUNNING runs whose process ran on this machine and has exited; return their names.

    Raises:
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(tracking_uri)
    # Read them all first: MLflow's pages would shift as runs end.
    runs = [run for run in _running(client, f"tags.`{TAG}` LIKE '{host_id()} %'") if is_gone(run.data.tags[TAG])]
    for run in runs:
        client.set_tag(run.info.run_id, "llmtrack.outcome", "killed")
        client.set_tag(run.info.run_id, "llmtrack.reason", ABANDONED)
        client.set_terminated(run.info.run_id, KILLED, end_time=now_ms())
    return sorted(run.info.run_name or run.info.run_id for run in runs)


def _running(client: MlflowClient, condition: str) -> list[Run]:
    """Return the RUNNING runs that meet a condition in MLflow's filter language."""
    pages = read_pages(client, list(experiment_names(client)), f"attributes.status = 'RUNNING' and {condition}")
    return list({run.info.run_id: run for page in pages for run in page}.values())
