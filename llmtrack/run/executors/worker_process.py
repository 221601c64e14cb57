"""A worker process as its parent sees it: what it is sent, what it tells, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from llmtrack.host.child_process import OUT_OF_MEMORY, SCRATCH, WORKER, child_environment, unused_folder
from llmtrack.host.process_tree import kill_tree
from llmtrack.worker.bytecode import bytecode_environment

LOOK_SECONDS = 1.0
"""How often to look whether a worker that tells nothing is still there."""

DEATH_SECONDS = 10.0
"""How long to wait for a process that was killed: one that waits for a dead disk never ends."""


class WorkerProcess:
    """A worker that runs; nothing that its parent does with it waits longer than it is told to.

    Args:
        threads: that compute, unless the environment says how many; 0: as many as PyTorch takes.
    """

    def __init__(self, threads: int = 0) -> None:
        told = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        self._scratch = unused_folder()
        self._process = self._start({**told, **child_environment(), **bytecode_environment(), SCRATCH: self._scratch})
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="llmtrack-listen", daemon=True).start()

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", WORKER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def lives(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def send(self, job: object) -> None:
        """Send a job; a worker that is dead, or reads no more, is noticed when it is listened to."""
        line = json.dumps(job) + "\n"
        # A pipe takes little, and a worker that is stopped takes nothing out of it.
        threading.Thread(target=self._write, args=(line,), name="llmtrack-send", daemon=True).start()

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return its next message, or None if there will be none.

        Raises:
            TimeoutError: it told nothing for so long.
        """
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, min(LOOK_SECONDS, left)))
            except queue.Empty:
                # A child of a dead worker can hold its end of the pipe open: then no end of file comes.
                if not self.lives() and self._lines.empty():
                    return None
                if left <= 0:
                    raise TimeoutError from None
                continue
            if line is None:
                return None
            with contextlib.suppress(ValueError):  # torn by its death
                message = json.loads(line)
                if isinstance(message, dict):
                    return message

    def ask_to_end(self) -> None:
        """Ask it to keep what it has and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> int | None:
        """Kill it with all that it started, unless it has ended; return its exit code, None if it cannot be killed."""
        if self.lives():
            kill_tree(self.pid)
        return self._exit_code(DEATH_SECONDS)

    def exit_code(self) -> int | None:
        """Return how it ended, when it tells nothing any more; None if it did not, and was killed."""
        # It closed its channel, so it is about to end; one that goes on is of no use.
        code = self._exit_code(DEATH_SECONDS)
        if code is None:
            self.end()
        return code

    def death(self) -> str:
        """Say in words how it ended, when it tells nothing any more."""
        code = self.exit_code()
        if code is None:
            return "the worker stopped telling what it does, and was killed"
        if code == -signal.SIGKILL:
            return "the worker was killed (SIGKILL), most likely by the system for lack of memory: use a smaller model, dtype or batch"
        if code == OUT_OF_MEMORY:
            return "the worker ran out of memory: use a smaller model, dtype or batch"
        if code < 0:
            return f"the worker was ended by signal {signal.Signals(-code).name}"
        return f"the worker ended with exit code {code} in the middle of the measurement"

    def _exit_code(self, seconds: float) -> int | None:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        shutil.rmtree(self._scratch, ignore_errors=True)
        return code

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)
