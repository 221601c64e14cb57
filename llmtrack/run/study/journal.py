"""A journal of finished acts on disk, one JSON line each, so that a killed process can be resumed without repeating them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from llmtrack.tracking.spool import Notify, to_stderr
from llmtrack.tracking.store import own_lock


class Journal:
    """Acts that are done once, even by several processes one after the other.

    The file is only ever appended to, or replaced as a whole by a rename: a failed write costs no act that is in it.
    Where it cannot be read or written, or another process writes it, all goes on without it, and a line says so.

    Args:
        path: the file; its folder is made.
        resume: take over what it holds; else it begins anew.
        notify: is given messages for the user.

    Attributes:
        taken_over: how many acts were taken over instead of being done.
    """

    def __init__(self, path: Path, resume: bool, notify: Notify = to_stderr) -> None:
        self.path = path
        self.taken_over = 0
        self._notify = notify
        self._writable = True
        self._known: list[dict[str, Any]] = []
        self._lock = own_lock("journal", str(path))
        self._ours = self._locked()
        if not self._ours:
            self._writable = False
            notify(
                f"another process measures the same and writes {path}: this one keeps nothing that resume=true could go on from"
            )
            return
        with self._if_possible("read"):
            self._known = _acts(path) if resume else []
        if self._writable:
            with self._if_possible():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._replace(self._known)

    def act(self, key: list[Any], do: Callable[[], Any], read: Callable[[Any], Any] = lambda gave: gave) -> Any:
        """Return what an act gave when it was done before, or do it and keep what it gave.

        Acts come in the same order each time; from the first on that differs, all are done and replace what was kept.

        Args:
            key: identifies the act (JSON-ready data).
            do: does it; what it gives is JSON-ready data.
            read: turns what it gave into the result; raises ValueError for kept data that it cannot read.
        """
        if self.taken_over < len(self._known):
            kept = self._known[self.taken_over]
            if kept["key"] == key:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    found = read(kept["gave"])
                    self.taken_over += 1
                    return found
            self._known = self._known[: self.taken_over]
            with self._if_possible():
                self._replace(self._known)
        gave = do()
        if self._writable:
            with self._if_possible(), self.path.open("a", encoding="utf-8") as file:
                file.write(_line({"key": key, "gave": gave}))
                _flush(file)
        return read(gave)

    def done(self) -> None:
        """Forget all: nothing is to be resumed."""
        if self._ours:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            self._lock.release(force=True)

    def _locked(self) -> bool:
        """Return whether no other process writes it; the system ends the lock with this process."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError:
            return True  # no folder for temporary files: nobody can tell
        return True

    def _replace(self, acts: Sequence[dict[str, Any]]) -> None:
        if not self._writable:
            return
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(map(_line, acts))
                _flush(file)
            os.replace(draft, self.path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _if_possible(self, what: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writable = False
            self._notify(
                f"cannot {what} {self.path} ({error.strerror}), so that resume=true could not go on from here: free some space, "
                "or set LLMTRACK_SPOOL to a folder that can be written"
            )


def _acts(path: Path) -> list[dict[str, Any]]:
    """Return the acts of a journal up to the first line that is none, such as the half line that a kill leaves.

    Raises:
        OSError: it is there and cannot be read.
    """
    acts: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return acts
    for line in lines:
        try:
            act = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(act, dict) or act.keys() != {"key", "gave"} or not isinstance(act["key"], list):
            break
        acts.append(act)
    return acts


def _line(act: dict[str, Any]) -> str:
    return json.dumps(act) + "\n"


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
