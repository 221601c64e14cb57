"""Keep every record durably in a folder until it is in MLflow.

A record is a folder `<start>-<record_id>` with `entry.json` and its files. It exists once its folder has that name, and
is gone once `entry.json` is removed; both are atomic, so a crash leaves a complete record or none. Each record has its
own lock, so that sending the files of one does not block others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrack.errors import TrackingError
from llmtrack.host.console import print_text
from llmtrack.spec.serialization import UnknownFieldsError, from_json, serializable, to_json
from llmtrack.tracking.write.records import RunRecord

DEFAULT_SPOOL = Path(".llmtrack") / "spool"

_ENTRY = "entry.json"
_FILES = "files"
_LOCK = "lock"
_CORRUPT = "corrupt"
_NEW = "new-"
_FORMAT = 1
_PUT_TIMEOUT_S = 180.0
_STALE_S = 24 * 3600.0

Notify = Callable[[str], None]


class NewerEntryError(TrackingError):
    """A record was written by a newer version and is left for it."""


def to_stderr(message: str) -> None:
    """Print a message for the user."""
    print_text(f"llmtrack: {message}", err=True)


@serializable()
@dataclass(frozen=True)
class Target:
    """Destination of a record.

    Attributes:
        tracking_uri: without credentials, which are taken from the environment when the record is sent.
        experiment: MLflow experiment, or empty if only its id is known.
        experiment_id: MLflow experiment id, or empty if unknown.
    """

    tracking_uri: str
    experiment: str
    experiment_id: str = ""


@serializable()
@dataclass(frozen=True)
class Entry:
    """A record to deliver.

    Attributes:
        run_id: its MLflow run, once known.
        attempted: whether a run may have been created for it, so that it must be looked up first.
        has_files: whether there are artifacts beside the record's own texts.
    """

    record: RunRecord
    target: Target
    run_id: str | None = None
    attempted: bool = False
    has_files: bool = False

    @property
    def name(self) -> str:
        """Folder name; sorts by start time."""
        return f"{self.record.start_ms:013d}-{self.record.record_id}"


class Spool:
    """Folder of records that are not in MLflow yet; safe for concurrent processes.

    Attributes:
        folder: the argument, else LLMTRACK_SPOOL, else `.llmtrack/spool` in the working directory.
    """

    def __init__(self, folder: Path | None = None, notify: Notify = to_stderr) -> None:
        chosen = folder or os.environ.get("LLMTRACK_SPOOL") or DEFAULT_SPOOL
        self.folder = Path(os.path.expanduser(chosen)).absolute()
        self._notify = notify

    def put(self, entry: Entry, files: Mapping[str, bytes | Path] | None = None) -> Entry:
        """Durably store a record and its files, replacing one of the same identity.

        Args:
            files: artifact path to content, or to a file to copy.

        Raises:
            TrackingError: the folder cannot be written.
        """
        entry = dataclasses.replace(entry, has_files=bool(files))
        fresh = self.folder / f"{_NEW}{uuid.uuid4().hex}"
        try:
            fresh.mkdir(parents=True)
            for name, content in (files or {}).items():
                _store_file(fresh / _FILES / name, content)
            _write(fresh / _ENTRY, entry)
            self._place(fresh, entry)
        except (OSError, TimeoutError) as error:
            raise TrackingError(
                f"cannot store a record in {self.folder} ({error}): "
                "free some space or set LLMTRACK_SPOOL to a writable folder"
            ) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return entry

    def names(self) -> list[str]:
        """Return the names of all entries, oldest first; empty if the folder is unreadable, see `check_readable`."""
        return sorted(name for name in self._list() if name[0].isdigit() and self._is_complete(name))

    def peek(self, name: str) -> Entry | None:
        """Read an entry without locking it; None if it is gone, or corrupt and thus set aside.

        Raises:
            OSError: it is temporarily unreadable (too many open files, a lost mount); it stays.
            NewerEntryError: it is for a newer version; it stays.
        """
        try:
            return _entry(_content(self.folder / name / _ENTRY))
        except FileNotFoundError:
            return None
        except ValueError as error:
            self._set_aside(name, error)
            return None

    def waiting(self, belongs: Callable[[Entry], bool]) -> int:
        """Count the matching entries; temporarily unreadable ones count, too."""
        count = 0
        for name in self.names():
            try:
                entry = self.peek(name)
                count += entry is not None and belongs(entry)
            except (OSError, TrackingError):
                count += 1
        return count

    @property
    def set_aside(self) -> Path:
        """Folder of corrupt entries."""
        return self.folder / _CORRUPT

    def corrupt(self) -> list[str]:
        """Return the names of corrupt entries.

        Raises:
            OSError: the folder is unreadable.
        """
        try:
            return sorted(os.listdir(self.set_aside))
        except FileNotFoundError:
            return []

    def restore(self) -> int:
        """Put back set-aside entries that are readable now, such as after an upgrade; return their number."""
        restored = 0
        for aside in self.corrupt():
            try:
                name = _entry(_content(self.set_aside / aside / _ENTRY)).name
                if not (self.folder / name).exists():
                    os.replace(self.set_aside / aside, self.folder / name)
                    restored += 1
            except (OSError, ValueError, NewerEntryError):
                continue
        return restored

    @contextlib.contextmanager
    def claim(self, name: str, timeout_s: float) -> Iterator[Entry | None]:
        """Lock an entry and read it; yield None if another process holds it for `timeout_s`, else as `peek`.

        Raises:
            OSError, NewerEntryError: as `peek`.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._locked(name, timeout_s))
            except (_BusyError, FileNotFoundError):
                yield None
                return
            yield self.peek(name)

    def update(self, entry: Entry) -> None:
        """Durably record the progress of a claimed entry."""
        _write(self.folder / entry.name / _ENTRY, entry)

    def remove(self, entry: Entry) -> None:
        """Remove a claimed entry that is in MLflow."""
        folder = self.folder / entry.name
        (folder / _ENTRY).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def files_of(self, entry: Entry) -> Path:
        """Return the folder of an entry's files."""
        return self.folder / entry.name / _FILES

    def sweep(self) -> None:
        """Remove incomplete entries of crashed processes after a day."""
        for name in self._list():
            if name.startswith(_NEW) or (name[0].isdigit() and not self._is_complete(name)):
                _remove_stale(self.folder / name)

    def check_readable(self) -> None:
        """Check that the folder is readable, if it exists.

        Raises:
            TrackingError: it is unreadable, so its content is unknown.
        """
        try:
            os.listdir(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TrackingError(
                f"cannot list the records in {self.folder} ({error.strerror}): make it readable, or set LLMTRACK_SPOOL to another folder"
            ) from error

    def _list(self) -> list[str]:
        # Tracking continues without a spool.
        with contextlib.suppress(OSError):
            return os.listdir(self.folder)
        return []

    def _is_complete(self, name: str) -> bool:
        try:
            os.stat(self.folder / name / _ENTRY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # Temporarily unreadable: do not sweep it.
        return True

    def _place(self, fresh: Path, entry: Entry) -> None:
        """Move a new entry to its name, or into the entry of that name."""
        target = self.folder / entry.name
        while not _moved(fresh, target):
            # There is an entry of this identity, or its remains; it may be in transit.
            with contextlib.suppress(FileNotFoundError), self._locked(entry.name, _PUT_TIMEOUT_S):
                if (target / _ENTRY).exists():
                    self._replace(fresh, target, entry)
                    break
                shutil.rmtree(target)
        _sync(self.folder)

    def _replace(self, fresh: Path, target: Path, entry: Entry) -> None:
        """Replace an entry's content, keeping what is known about its run, which may exist already."""
        known = self.peek(entry.name)
        if known is not None:
            entry = dataclasses.replace(
                entry,
                run_id=entry.run_id or known.run_id,
                attempted=entry.attempted or known.attempted,
                has_files=entry.has_files or known.has_files,
            )
            _write(fresh / _ENTRY, entry)
        if (fresh / _FILES).is_dir():
            shutil.copytree(fresh / _FILES, target / _FILES, dirs_exist_ok=True)
        target.mkdir(exist_ok=True)
        os.replace(fresh / _ENTRY, target / _ENTRY)
        _sync(target)

    def _set_aside(self, name: str, error: Exception) -> None:
        aside = self.folder / _CORRUPT / f"{name}-{uuid.uuid4().hex[:8]}"
        try:
            aside.parent.mkdir(exist_ok=True)
            os.replace(self.folder / name, aside)
        except OSError as move_error:
            self._notify(f"cannot read or move the record {self.folder / name}: {move_error}")
            return
        self._notify(
            f"a record in the spool is unreadable ({type(error).__name__}: {error}); "
            f"moved to {aside}, the others are not affected"
        )

    @contextlib.contextmanager
    def _locked(self, name: str, timeout_s: float) -> Iterator[None]:
        from filelock import FileLock, Timeout

        folder = self.folder / name
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            raise _BusyError(f"another process has held it for {timeout_s:.0f} s") from None
        try:
            yield
        finally:
            lock.release()


class _BusyError(TimeoutError):
    pass


def _content(path: Path) -> Any:
    """Parse an entry's file.

    Raises:
        OSError: it is temporarily unreadable.
        ValueError: it is not JSON.
    """
    text = path.read_bytes()
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _entry(data: Any) -> Entry:
    """Decode an entry.

    Raises:
        ValueError: the data is invalid.
        NewerEntryError: a newer version wrote it.
    """
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is int and version > _FORMAT:
        raise NewerEntryError(_newer(f"format {version}"))
    if version != _FORMAT:
        raise ValueError(f"it is not of format {_FORMAT}")
    try:
        entry: Entry = from_json({name: value for name, value in data.items() if name != "format"}, Entry)
    except UnknownFieldsError as error:
        raise NewerEntryError(_newer(str(error))) from error
    return entry


def _newer(sign: str) -> str:
    return f"a record was written by a newer llmtrack ({sign}): send it with that version"


def _moved(fresh: Path, target: Path) -> bool:
    """Move a folder unless the target exists; return whether it was moved."""
    try:
        os.replace(fresh, target)
    except OSError as error:
        # The previous entry may be gone by now, because it was sent.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not target.is_dir():
            raise
        return False
    return True


def _remove_stale(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _STALE_S:
            shutil.rmtree(path, ignore_errors=True)


def _store_file(path: Path, content: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
    _sync(path)


def _write(path: Path, entry: Entry) -> None:
    part = path.with_suffix(".part")
    # ASCII: lone surrogates are escaped instead of failing.
    part.write_text(json.dumps({"format": _FORMAT, **to_json(entry)}, ensure_ascii=True), encoding="ascii")
    _sync(part)
    os.replace(part, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, if supported."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
