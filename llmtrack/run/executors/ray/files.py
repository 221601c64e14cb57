"""Files that scenarios name, on their way to a node: in a folder that it shares, or sent where they are small."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmtrack.errors import LlmtrackError
from llmtrack.host.units import MIB
from llmtrack.models.cache import build_once, file_digest
from llmtrack.models.source import parse_candidates
from llmtrack.run.executors.ray.kinds import Node
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import Task, TrainTask

MOST_SENT_MIB = 512
"""Larger models reach nodes by a shared folder or the hub: what is sent passes through the memory of both sides."""

HOME = "on-node.txt"
"""Beside where checkpoints would be: the node that they are on."""


@dataclass(frozen=True)
class Parcel:
    """A file or folder that a scenario names, or that a worker wrote.

    Attributes:
        written: how it is named.
        path: where it is for whoever sends it.
        digest: of all it holds.
        size: bytes.
        content: what `packed` returned, or Ray's reference to it, or None where it is too big to be sent.
    """

    written: str
    path: str
    digest: str
    size: int
    content: Any = None


def named_files(scenarios: Sequence[Scenario]) -> dict[str, Path]:
    """Return the models and texts of scenarios that are files here, by how they are written."""
    found: dict[str, Path] = {}
    for scenario in scenarios:
        for variant in scenario.variants:
            for source in parse_candidates(variant.model):
                if source.kind in ("folder", "gguf", "run"):
                    found[source.spec] = Path(source.location)
        files = (each for each in scenario.texts if each.endswith((".txt", ".jsonl")))
        found |= {text: Path(os.path.expanduser(text)) for text in files}
    return {written: path.absolute() for written, path in found.items() if path.exists()}


def digest_of(path: Path) -> str:
    """Return a digest of a file, or of the names and contents of all files in a folder."""
    if path.is_file():
        return file_digest(path)
    found = hashlib.sha256()
    for each in _files(path):
        found.update(f"{each.relative_to(path).as_posix()} {file_digest(each)}\n".encode())
    return found.hexdigest()


def parcel_of(written: str, path: Path, send: Callable[[Any], Any]) -> Parcel:
    """Return a file or folder as a parcel; what is small enough is handed to `send`."""
    size = sum(each.stat().st_size for each in _files(path))
    content = send(packed(path)) if size <= MOST_SENT_MIB * MIB else None
    return Parcel(written, str(path), digest_of(path), size, content)


def packed(path: Path) -> dict[str, bytes]:
    """Return the contents of a file or folder by their names within its parent."""
    return {each.relative_to(path.parent).as_posix(): each.read_bytes() for each in _files(path)}


def awaited(reference: Any, seconds: float | None = None) -> Any:
    """Return what Ray's reference stands for, as a task that keeps its node meanwhile.

    Ray takes a task that waits in `ray.get` for one that needs no CPUs, and begins the next one on its node.
    """
    return reference.future().result(seconds)


def arrive(parcel: Parcel, fetch: Callable[[Any], Mapping[str, bytes]] = awaited) -> str:
    """Return where a parcel is on this node: under its own path if it is the same there, else where it was sent to.

    Args:
        parcel: what a scenario names.
        fetch: returns what was sent, by the parcel's content.

    Raises:
        LlmtrackError: it is not here and too big to be sent, or what arrived is not what was sent.
    """
    path = Path(parcel.path)
    if path.exists() and digest_of(path) == parcel.digest:
        return parcel.path
    if parcel.content is None:
        there = "holds other files there" if path.exists() else "is not there"
        raise LlmtrackError(
            f"{parcel.written} {there}, and its {parcel.size / MIB:,.0f} MiB are too many to be sent (at most "
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


def renamed(data: Any, names: Mapping[str, str]) -> Any:
    """Return JSON-ready data with other names of files, where one stands alone or in a comma list."""
    if isinstance(data, dict):
        return {key: renamed(value, names) for key, value in data.items()}
    if isinstance(data, list):
        return [renamed(value, names) for value in data]
    if isinstance(data, str):
        return names.get(data) or ",".join(names.get(part.strip(), part) for part in data.split(","))
    return data


def named_back(data: Any, names: Mapping[str, str]) -> Any:
    """Return JSON-ready data of an event with the names as they were written, but where it says where files are."""
    if isinstance(data, dict):
        kept = ("files", "model_folder")
        return {key: value if key in kept else named_back(value, names) for key, value in data.items()}
    if isinstance(data, list):
        return [named_back(value, names) for value in data]
    if isinstance(data, str):
        for written, here in names.items():
            data = data.replace(here, written) if written != here else data
    return data


def brought(done: Measurement, node: str, fetch: Callable[[str], Parcel]) -> Measurement:
    """Return a measurement whose files are on this machine; of those that cannot be brought here, a warning says where they are.

    Args:
        done: what a worker measured; it names files by their paths on its node.
        node: the node.
        fetch: returns what is under a path there, as a parcel that holds its content.
    """
    left: list[str] = []

    def here(path: str) -> str:
        if not path or Path(path).exists():
            return path
        try:
            return arrive(fetch(path), dict)
        except LlmtrackError:
            left.append(path)
            return ""

    files = {name: found for name, path in done.files.items() if (found := here(path))}
    done = replace(done, files=files, model_folder=here(done.model_folder))
    if not left:
        return done
    warning = f"files stayed on {node} (more than {MOST_SENT_MIB} MiB are not sent): {', '.join(sorted(left))}"
    return replace(done, warnings=(*done.warnings, warning))


def note_home(task: Task, node: Node) -> None:
    """Keep on this machine which node a training writes its checkpoints on, so that it is taken up again there."""
    if isinstance(task, TrainTask):
        with suppress(OSError):  # Then the training begins anew elsewhere.
            Path(task.output).mkdir(parents=True, exist_ok=True)
            (Path(task.output) / HOME).write_text(node.place, encoding="utf-8")


def home_of(task: Task) -> str:
    """Return on which node a training's checkpoints are, as `note_home` kept it; empty: here, or there are none."""
    if not isinstance(task, TrainTask):
        return ""
    folder = Path(task.output)
    note = folder / HOME
    return note.read_text(encoding="utf-8") if note.is_file() and not any(folder.glob("checkpoint-*")) else ""


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
