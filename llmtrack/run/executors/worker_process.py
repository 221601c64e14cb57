"""The parent's view of a worker process: sending, receiving, and how it ended."""

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

from llmtrack.host.processes import OUT_OF_MEMORY, SCRATCH, WORKER, child_environment, kill_tree, unused_folder
from llmtrack.worker.bytecode import bytecode_environment

LOOK_SECONDS = 1.0
"""Polling interval of a silent worker."""

DEATH_SECONDS = 10.0
"""Timeout for a killed process: one blocked on a dead disk never ends."""


class WorkerProcess:
    """A running worker; all operations are bounded in time.

    Args:
        threads: OMP_NUM_THREADS unless already set; 0 for PyTorch's default.
    """

    def __init__(self, threads: int = 0) -> None:
        default = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        self._scratch = unused_folder()
        self._process = self._start(
            {**default, **child_environment(), **bytecode_environment(), SCRATCH: self._scratch}
        )
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
        """Process id."""
        return self._process.pid

    def lives(self) -> bool:
        """Return whether it is running."""
        return self._process.poll() is None

    def send(self, job: object) -> None:
        """Send a job; a dead or stuck worker is detected when receiving."""
        line = json.dumps(job) + "\n"
        # A pipe buffers little, and a stopped worker does not read from it.
        threading.Thread(target=self._write, args=(line,), name="llmtrack-send", daemon=True).start()

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return its next message, or None if there will be none.

        Raises:
            TimeoutError: it was silent for too long.
        """
        deadline = time.monotonic() + seconds
        while True:
            rest = deadline - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, min(LOOK_SECONDS, rest)))
            except queue.Empty:
                # A child of a dead worker can keep the pipe open, so that no end of file arrives.
                if not self.lives() and self._lines.empty():
                    return None
                if rest <= 0:
                    raise TimeoutError from None
                continue
            if line is None:
                return None
            with contextlib.suppress(ValueError):  # line truncated by its death
                message = json.loads(line)
                if isinstance(message, dict):
                    return message

    def ask_to_end(self) -> None:
        """Ask it to save its state and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self) -> int | None:
        """Kill it with its descendants if it is running; return its exit code, or None if it cannot be killed."""
        if self.lives():
            kill_tree(self.pid)
        return self._exit_code(DEATH_SECONDS)

    def exit_code(self) -> int | None:
        """Return the exit code of a worker that closed its channel; None if it had to be killed."""
        # It closed its channel, so it should be about to end.
        code = self._exit_code(DEATH_SECONDS)
        if code is None:
            self.end()
        return code

    def death(self) -> str:
        """Explain how a worker that closed its channel ended."""
        code = self.exit_code()
        if code is None:
            return "the worker closed its channel without ending, and was killed"
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
