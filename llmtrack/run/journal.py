"""What was done and what came of it, a line each on disk, so that what was killed can be gone through again without doing it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmtrack.tracking.spool import Notify, to_stderr


class Journal:
    """Acts that are done once, even by several processes one after the other.

    Where it cannot be written, all goes on without it, and a line says so.

    Args:
        path: the file; its folder is made.
        resume: take over what it holds; else it begins anew.
        notify: is given messages for the user.
    """

    def __init__(self, path: Path, resume: bool, notify: Notify = to_stderr) -> None:
        self.path = path
        self._notify = notify
        self._writable = True
        known = list(_lines(path)) if resume else []
        with self._if_possible():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without the half line that a kill may have left.
            path.write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
        self._known = iter(known)
        self.taken_over = 0

    def act(self, key: list[Any], do: Callable[[], Any]) -> Any:
        """Return what an act gave when it was done before, or do it and keep what it gave (JSON-ready data).

        Acts come in the same order each time; from the first on that is another one, all are done.
        """
        kept = next(self._known, None)
        if kept is not None and kept["key"] == key:
            self.taken_over += 1
            return kept["gave"]
        self._known = iter(())
        gave = do()
        if self._writable:
            with self._if_possible(), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "gave": gave}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return gave

    def done(self) -> None:
        """Forget all: nothing is to be resumed."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _if_possible(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writable = False
            self._notify(
                f"cannot write {self.path} ({error.strerror}), so that resume=true could not go on from here: free some space, "
                "or set LLMTRACK_SPOOL to a folder that can be written"
            )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)
