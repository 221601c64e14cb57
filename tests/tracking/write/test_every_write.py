"""A failure of any single write of the journal or the spool loses nothing that was stored before."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import io
import os
import shutil

import pytest

from llmtrack.errors import TrackingError
from llmtrack.run.study.journal import Journal
from llmtrack.tracking.write.spool import Spool
from tests.tracking.write.test_spool import entry

MOST_WRITES = 200


class Failing:
    """Fail the nth writing call, alone or with all after it; a failing write stores half of its content."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int, code: int, lasting: bool) -> None:
        self.calls, self.nth, self.code, self.lasting = 0, nth, code, lasting
        owners = {"replace": os, "fsync": os, "mkdir": os, "unlink": os, "copyfile": shutil}
        patch.setattr(os, "fsync", lambda file: None)  # no machine stops here, and waiting for the disk takes longest
        for name, owner in owners.items():
            patch.setattr(owner, name, self._checked(getattr(owner, name)))
        opened = self._opened(io.open)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)

    @property
    def hit(self) -> bool:
        return self.calls >= self.nth

    def check(self) -> None:
        self.calls += 1
        if self.calls == self.nth or (self.lasting and self.hit):
            raise OSError(self.code, os.strerror(self.code))

    def _checked(self, real):
        def call(*arguments, **keywords):
            self.check()
            return real(*arguments, **keywords)

        return call

    def _opened(self, real):
        def call(file, mode="r", *arguments, **keywords):
            opened = real(file, mode, *arguments, **keywords)
            if not {*mode} & {*"wax+"}:
                return opened
            self.check()
            write = opened.write

            def halved(text):
                try:
                    self.check()
                except OSError:
                    write(text[: len(text) // 2])
                    opened.flush()
                    raise
                return write(text)

            return Halved(opened, halved)

        return call


class Halved:
    """A file whose writes go through a function."""

    def __init__(self, file, write) -> None:
        self._file, self.write = file, write

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __enter__(self) -> Halved:
        return self

    def __exit__(self, *error) -> None:
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


def each_write(monkeypatch, code, lasting, work) -> None:
    """Repeat some work with its first write failing, then its second, and so on until none fails."""
    for nth in range(1, MOST_WRITES):
        with monkeypatch.context() as patch:
            check = work(nth, lambda patch=patch, nth=nth: Failing(patch, nth, code, lasting))
        if not check():
            return
    raise AssertionError(f"more than {MOST_WRITES} writes")


FAILURES = pytest.mark.parametrize(
    ("code", "lasting"),
    [(errno.ENOSPC, True), (errno.EIO, False), (errno.EROFS, True), (errno.ENOSPC, False)],
)


@FAILURES
def test_the_journal_keeps_what_was_done(tmp_path, monkeypatch, code, lasting):
    def work(nth, failing):
        path, messages = tmp_path / str(nth) / "acts.jsonl", []

        def act(count):
            journal = Journal(path, True, messages.append)
            done = []
            assert [journal.act([i], lambda i=i: done.append(i) or i * i) for i in range(count)] == [
                i * i for i in range(count)
            ]
            journal._lock.release(force=True)  # as the system does when the process exits
            return done

        assert act(3) == [0, 1, 2]
        failure = failing()
        act(5)

        def check():
            done = act(5)
            assert {*done} <= {3, 4}
            assert messages or not done, "what is lost is messages"
            assert list(path.parent.iterdir()) == [path]
            return failure.hit

        return check

    each_write(monkeypatch, code, lasting, work)


@pytest.mark.slow(9)
@FAILURES
def test_the_spool_keeps_every_record(tmp_path, monkeypatch, code, lasting):
    start = Spool(tmp_path / "start")
    first, second, third = (start.put(entry(str(i)), {"a.txt": b"a" * 10}) for i in range(3))
    new = (entry("3"), entry("4"), dataclasses.replace(third, run_id="r2"))

    def work(nth, failing):
        spool = Spool(shutil.copytree(start.folder, tmp_path / str(nth)), lambda text: None)
        stored = {first.name, second.name, third.name}
        failure = failing()
        for fresh in new:
            with contextlib.suppress(TrackingError):
                stored.add(spool.put(fresh, {"b/c.txt": b"b" * 20}).name)
        with spool.claim(first.name, 1) as claimed:
            if claimed is not None:
                with contextlib.suppress(OSError):
                    spool.update(dataclasses.replace(claimed, run_id="r1"))
        with spool.claim(second.name, 1) as claimed:
            if claimed is not None:
                try:
                    spool.remove(claimed)
                    stored.remove(second.name)
                except OSError:
                    pass
        spool.sweep()

        def check():
            reopened = Spool(spool.folder, pytest.fail)
            assert stored <= {*reopened.names()}
            for name in stored:
                assert reopened.peek(name).has_files
                assert any(reopened.files_of(reopened.peek(name)).rglob("*.txt"))
            assert reopened.corrupt() == []
            return failure.hit

        return check

    each_write(monkeypatch, code, lasting, work)
