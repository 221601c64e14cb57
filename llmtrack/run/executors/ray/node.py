"""Ray task functions that run on a node; the work is done by a process executor."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from llmtrack.errors import LlmtrackError
from llmtrack.host.packages import installed_version
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.executors.ray.files import Parcel, localized, parcel_of, unlocalized, unpack
from llmtrack.run.executors.timeouts import Patience
from llmtrack.spec.events import Event, event_to_json
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import from_json
from llmtrack.tracking.environment import machine_facts
from llmtrack.version import FOLDER, __version__
from llmtrack.worker.outcomes import failure_of

BEAT_SECONDS = 10.0
"""Heartbeat interval of a task."""

Send = Callable[[dict[str, Any]], None]

# An idle worker without a model, kept for the next task of this Ray process, and its environment, which determines the
# visible GPUs.
_idle: tuple[ProcessExecutor, dict[str, str]] | None = None


def probe() -> dict[str, Any]:
    """Describe the node without starting a worker or importing torch."""
    return {"hostname": socket.gethostname(), "facts": dict(machine_facts()), "versions": versions()}


def versions() -> dict[str, str]:
    """Return the versions that driver and workers must share."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "llmtrack": f"{__version__} ({_code()})",
        **{name: installed_version(name) for name in ("torch", "transformers")},
    }


def describe(patience: Patience, alone: bool, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of the environment in which a worker on this node measures."""
    with _worker(patience, alone) as executor:
        return _environment(executor, facts)


def check(patience: Patience, alone: bool, scenarios: Sequence[Any], parcels: Sequence[Parcel]) -> None:
    """Check scenarios in a worker on this node; see `Executor.check`."""
    paths = {parcel.written: unpack(parcel) for parcel in parcels}
    with _worker(patience, alone) as executor:
        executor.check([from_json(localized(data, paths), Scenario) for data in scenarios])


def identify(patience: Patience, alone: bool, scenario: Any, parcels: Sequence[Parcel]) -> dict[str, str]:
    """Identify the model in a worker on this node; see `Executor.identify`."""
    paths = {parcel.written: unpack(parcel) for parcel in parcels}
    with _worker(patience, alone) as executor:
        return dict(executor.identify(from_json(localized(scenario, paths), Scenario)))


def fetch(path: str) -> Parcel:
    """Return a worker's output on this node, with content."""
    return parcel_of(path, Path(path), lambda content: content)


def measure(
    send: Send,
    patience: Patience,
    alone: bool,
    facts: Mapping[str, str],
    scenarios: Sequence[Any],
    parcels: Sequence[Parcel],
) -> None:
    """Measure scenarios of one variant; send the environment, each event, and a final message.

    When interrupted, a training worker first saves its state.

    Args:
        alone: whether the measurement has the node to itself.
        facts: known to the cluster only.
        scenarios: as JSON.
        parcels: the files that they name.
    """
    paths: dict[str, str] = {}

    def emit(event: Event) -> None:
        send({"event": unlocalized(event_to_json(event), paths)})

    with _beating(send), _worker(patience, alone) as executor:
        try:
            send({"where": _environment(executor, facts)})
            started_at = time.time()
            try:
                paths.update({parcel.written: unpack(parcel) for parcel in parcels})
            except LlmtrackError as error:
                for data in scenarios:
                    emit(failure_of(from_json(data, Scenario), error, started_at, kind="load"))
            else:
                executor.run([from_json(localized(data, paths), Scenario) for data in scenarios], emit)
        finally:
            executor.close()
    send({"ended": True})


def _environment(executor: ProcessExecutor, facts: Mapping[str, str]) -> dict[str, str]:
    return {**machine_facts(), **executor.machine(), **facts}


@contextmanager
def _worker(patience: Patience, alone: bool) -> Iterator[ProcessExecutor]:
    """Use the idle worker if it was started for the same devices, else a new one; keep it idle at the end."""
    global _idle
    # On a whole machine, let torch choose the number of threads as outside Ray. Ray sets it to the task's CPUs, which is
    # right for a part of a machine.
    if alone and "OMP_NUM_THREADS" not in psutil.Process().environ():
        os.environ.pop("OMP_NUM_THREADS", None)
    environment = dict(os.environ)
    if _idle is not None and _idle[1] != environment:
        _idle[0].close()
        _idle = None
    executor, _idle = _idle[0] if _idle else ProcessExecutor(patience), None
    try:
        yield executor
    except BaseException:
        executor.close()
        raise
    _idle = executor, environment


@contextmanager
def _beating(send: Send) -> Iterator[None]:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            send({})

    threading.Thread(target=beat, name="llmtrack-beat", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@cache
def _code() -> str:
    """Return a digest of llmtrack's own files, as a checkout changes without a new version."""
    content = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        content.update(path.relative_to(FOLDER).as_posix().encode() + path.read_bytes())
    return content.hexdigest()[:8]
