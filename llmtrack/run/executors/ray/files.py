"""Transfer files named by scenarios to a node: through a shared folder, or sent if small."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmtrack.errors import LlmtrackError
from llmtrack.host.formatting import MIB
from llmtrack.models.cache import build_once, file_digest
from llmtrack.models.source import parse_candidates
from llmtrack.run.executors.ray.kinds import Node
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import Task, TrainTask

MOST_SENT_MIB = 512
"""Larger models need a shared folder or the hub, because a transfer passes through the memory of both sides."""

HOME = "on-node.txt"
"""File that names the node with the checkpoints, in the folder where they would be."""


@dataclass(frozen=True)
class Parcel:
    """A file or folder that a scenario names, or that a worker wrote.

    Attributes:
        written: its name in the scenario.
        path: path at the sender.
        content: result of `pack`, or Ray's reference to it, or None if too big to send.
    """

    written: str
    path: str
    digest: str
    size: int
    content: Any = None


def named_files(scenarios: Sequence[Scenario]) -> dict[str, Path]:
    """Return the models and texts of scenarios that are local files, by their names in the scenarios."""
    paths: dict[str, Path] = {}
    for scenario in scenarios:
        for variant in scenario.variants:
            for source in parse_candidates(variant.model):
                if source.kind in ("folder", "gguf", "run"):
                    paths[source.spec] = Path(source.location)
        texts = (text for text in scenario.texts if text.endswith((".txt", ".jsonl")))
        paths |= {text: Path(os.path.expanduser(text)) for text in texts}
    return {written: path.absolute() for written, path in paths.items() if path.exists()}


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files in a folder."""
    if path.is_file():
        return file_digest(path)
    content = hashlib.sha256()
    for file in _files(path):
        content.update(f"{file.relative_to(path).as_posix()} {file_digest(file)}\n".encode())
    return content.hexdigest()


def parcel_of(written: str, path: Path, send: Callable[[Any], Any]) -> Parcel:
    """Pack a file or folder; pass it to `send` if it is small enough."""
    size = sum(file.stat().st_size for file in _files(path))
    content = send(pack(path)) if size <= MOST_SENT_MIB * MIB else None
    return Parcel(written, str(path), digest_of(path), size, content)


def pack(path: Path) -> dict[str, bytes]:
    """Return the contents of a file or folder by path relative to its parent."""
    return {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in _files(path)}


def awaited(reference: Any, seconds: float | None = None) -> Any:
    """Get the object behind a Ray reference without releasing the task's resources.

    While a task waits in `ray.get`, Ray would start the next one on its node.
    """
    return reference.future().result(seconds)


def unpack(parcel: Parcel, fetch: Callable[[Any], Mapping[str, bytes]] = awaited) -> str:
    """Return the path of a parcel on this node: the same path if its content is the same, else that of a copy.

    Raises:
        LlmtrackError: it is neither here nor small enough to send, or it changed in transit.
    """
    path = Path(parcel.path)
    if path.exists() and digest_of(path) == parcel.digest:
        return parcel.path
    if parcel.content is None:
        state = "holds other files there" if path.exists() else "is not there"
        raise LlmtrackError(
            f"{parcel.written} {state}, and its {parcel.size / MIB:,.0f} MiB are too many to be sent (at most "
            f"{MOST_SENT_MIB}): put it under {parcel.path} into a folder that all nodes share, or name a model of the hub"
        )

    def write(folder: Path) -> dict[str, Any]:
        for name, content in fetch(parcel.content).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        if digest_of(folder / path.name) != parcel.digest:
            raise LlmtrackError(f"{parcel.written} changed on its way to the node: measure again")
        return {"sent": parcel.digest}

    return str(build_once(f"sent-{parcel.digest[:16]}", write, parcel.size) / path.name)


def localized(data: Any, names: Mapping[str, str]) -> Any:
    """Replace the names of files by their paths on this node in JSON-ready data, also in comma-separated lists."""
    if isinstance(data, dict):
        return {key: localized(value, names) for key, value in data.items()}
    if isinstance(data, list):
        return [localized(value, names) for value in data]
    if isinstance(data, str):
        return names.get(data) or ",".join(names.get(part.strip(), part) for part in data.split(","))
    return data


def unlocalized(data: Any, names: Mapping[str, str]) -> Any:
    """Restore the names of files in an event's JSON, except where it reports locations."""
    if isinstance(data, dict):
        locations = ("files", "model_folder")
        return {key: value if key in locations else unlocalized(value, names) for key, value in data.items()}
    if isinstance(data, list):
        return [unlocalized(value, names) for value in data]
    if isinstance(data, str):
        for written, path in names.items():
            data = data.replace(path, written) if written != path else data
    return data


def with_files(measurement: Measurement, node: str, fetch: Callable[[str], Parcel]) -> Measurement:
    """Return a measurement with its files, named by their paths on a node, fetched to this machine; warn about the
    rest.
    """
    missing: list[str] = []

    def local_path(path: str) -> str:
        if not path or Path(path).exists():
            return path
        try:
            return unpack(fetch(path), dict)
        except LlmtrackError:
            missing.append(path)
            return ""

    files = {name: local for name, path in measurement.files.items() if (local := local_path(path))}
    measurement = replace(measurement, files=files, model_folder=local_path(measurement.model_folder))
    if not missing:
        return measurement
    warning = f"files stayed on {node} (more than {MOST_SENT_MIB} MiB are not sent): {', '.join(sorted(missing))}"
    return replace(measurement, warnings=(*measurement.warnings, warning))


def note_home(task: Task, node: Node) -> None:
    """Record locally which node holds the checkpoints of a training, to resume it there."""
    if isinstance(task, TrainTask):
        with suppress(OSError):  # Then the training restarts elsewhere.
            Path(task.output).mkdir(parents=True, exist_ok=True)
            (Path(task.output) / HOME).write_text(node.place, encoding="utf-8")


def home_of(task: Task) -> str:
    """Return the node recorded by `note_home`; empty if the checkpoints are local or there are none."""
    if not isinstance(task, TrainTask):
        return ""
    folder = Path(task.output)
    note = folder / HOME
    return note.read_text(encoding="utf-8") if note.is_file() and not any(folder.glob("checkpoint-*")) else ""


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
