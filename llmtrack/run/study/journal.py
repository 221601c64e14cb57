"""A journal of completed actions on disk, one JSON line each, to resume a killed process without repeating them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from llmtrack.tracking.store import user_lock
from llmtrack.tracking.write.spool import Notify, to_stderr


class Journal:
    """Actions that are performed once, even across several processes.

    The file is only appended to, or replaced atomically by a rename, so that a failed write loses nothing. If it cannot
    be read or written, or another process uses it, work continues without it and the user is notified.

    Attributes:
        taken_over: number of actions reused.
    """

    def __init__(self, path: Path, resume: bool, notify: Notify = to_stderr) -> None:
        self.path = path
        self.taken_over = 0
        self._notify = notify
        self._writable = True
        self._known: list[dict[str, Any]] = []
        self._lock = user_lock("journal", str(path))
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

    def act(self, key: list[Any], do: Callable[[], Any], decode: Callable[[Any], Any] = lambda result: result) -> Any:
        """Return the recorded result of an action, or perform and record it.

        Actions must come in the same order each time; from the first mismatch on, all are performed and replace the
        recorded ones.

        Args:
            key: identity of the action, JSON-ready.
            do: perform it; its result must be JSON-ready.
            decode: decode a result; raises ValueError if it cannot.
        """
        if self.taken_over < len(self._known):
            recorded = self._known[self.taken_over]
            if recorded["key"] == key:
                with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
                    result = decode(recorded["gave"])
                    self.taken_over += 1
                    return result
            self._known = self._known[: self.taken_over]
            with self._if_possible():
                self._replace(self._known)
        result = do()
        if self._writable:
            with self._if_possible(), self.path.open("a", encoding="utf-8") as file:
                file.write(_line({"key": key, "gave": result}))
                _flush(file)
        return decode(result)

    def done(self) -> None:
        """Delete the journal: nothing is left to resume."""
        if self._ours:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            self._lock.release(force=True)

    def _locked(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError:
            return True  # no temporary folder: locking is impossible
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
    def _if_possible(self, action: str = "write") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writable = False
            self._notify(
                f"cannot {action} {self.path} ({error.strerror}), so that resume=true could not go on from here: free some space, "
                "or set LLMTRACK_SPOOL to a folder that can be written"
            )


def _acts(path: Path) -> list[dict[str, Any]]:
    """Return the actions of a journal up to the first invalid line, such as one truncated by a kill.

    Raises:
        OSError: it exists and cannot be read.
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
