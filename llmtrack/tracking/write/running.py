"""Runs of live and dead processes: claim a piece of work, so that no second process does it at the same time without a word,
and end the runs of processes that were killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from llmtrack.errors import UsageError
from llmtrack.host.console import on_one_line
from llmtrack.tracked.run import KILLED
from llmtrack.tracking import store
from llmtrack.tracking.owner import ABANDONED, TAG, host_id, is_gone
from llmtrack.tracking.read.source import read_pages

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
    """Open the study of a piece of work, unless it is to resume what another process is at.

    Looking and opening are one step to the other processes of this machine. Whether a process of another machine still
    lives cannot be known: a line says what it left running, since a machine that was lost must not keep its work for ever.

    Args:
        tracker: where the study is tracked; its run carries the tag `WORK_TAG`.
        work: identifies what is measured.
        resume: whether only the rest of it is to be measured; else all is, whoever else does so.
        say: prints a line.
        start: opens the study.

    Raises:
        UsageError: a process of this machine is at it.
        TrackingError: the store cannot be read.
    """
    if not resume or tracker.offline:
        return start()
    from filelock import Timeout

    try:
        with store.user_lock("claim", tracker.tracking_uri, work).acquire(timeout=_WAIT_S):
            _refuse_claimed(_running(work, tracker.tracking_uri), say)
            return start()
    except Timeout:
        raise UsageError(
            f"another process has been opening this very study for {_WAIT_S:.0f} s: try again when it has ended"
        ) from None


def _running(work: str, tracking_uri: str) -> list[Run]:
    client = store.open_existing(tracking_uri)
    wanted = f"attributes.status = 'RUNNING' and tags.`{WORK_TAG}` = '{work}'"
    pages = read_pages(client, list(store.experiment_names(client)), wanted)
    found = {run.info.run_id: run for page in pages for run in page}
    return [run for run in found.values() if not is_gone(run.data.tags.get(TAG, ""))]


def _refuse_claimed(others: list[Run], say: Callable[[str], None]) -> None:
    for run in others:
        host, _, pid, *_ = [*run.data.tags.get(TAG, "").split(" "), "", "", ""]
        began = datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc)
        what = f"{on_one_line(run.info.run_name)!r}, since {began:%Y-%m-%d %H:%M:%S} UTC"
        if host == host_id():
            raise UsageError(
                f"process {pid} measures this very study already ({what}): "
                "wait until it has ended, or end it, and give the command again"
            )
        say(f"  another machine measures this very study, or was lost while it did ({what})")


def close_abandoned(tracking_uri: str | None = None) -> list[str]:
    """End the RUNNING runs whose process ran on this machine and is gone; return their names.

    Runs of other or unknown machines are left alone.

    Args:
        tracking_uri: the store.

    Raises:
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(tracking_uri)
    wanted = f"attributes.status = 'RUNNING' and tags.`{TAG}` LIKE '{host_id()} %'"
    found: dict[str, Run] = {}
    for page in read_pages(client, list(store.experiment_names(client)), wanted):
        found |= {run.info.run_id: run for run in page if is_gone(run.data.tags[TAG])}
    for run_id in found:
        _close(client, run_id)
    return sorted(run.info.run_name or run_id for run_id, run in found.items())


def _close(client: MlflowClient, run_id: str) -> None:
    client.set_tag(run_id, "llmtrack.outcome", "killed")
    client.set_tag(run_id, "llmtrack.reason", ABANDONED)
    client.set_terminated(run_id, KILLED, end_time=round(time.time() * 1000))
