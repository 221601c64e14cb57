"""Run a function in a separate Python process without re-executing the caller's script.

`multiprocessing` would import the caller's `__main__`: an unguarded script would start over in the child and deadlock
on the lock held by its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from llmtrack.errors import ScenarioError
from llmtrack.host.processes import child_environment, temporary_folder

Result = TypeVar("Result")

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Environment of a process that allocates a model's weights over and over.

Where Linux gives huge pages only on request, faults of small pages take a third of the time of an export.
"""


def run_isolated(action: str, work: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function in a separate process; return its result or raise its error.

    Isolates memory and crashes. The child process ends with this one, and its temporary files are removed.

    Args:
        action: for messages.
        work: a function of a module that the child process can import.
        arguments: picklable, like the result.

    Raises:
        ScenarioError: the process died.
    """
    with temporary_folder() as folder:
        result, log = Path(folder) / "result", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(result)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=HUGE_PAGES | child_environment() | {"TMPDIR": folder},
            )
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps((work, arguments)))
                process.stdin.flush()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if not result.exists():
            raise _death(action, code, log.read_text(encoding="utf-8", errors="replace"))
        returned, error = pickle.loads(result.read_bytes())
    if error is not None:
        raise error
    return returned


def _death(action: str, code: int, output: str) -> ScenarioError:
    if code == -signal.SIGKILL:
        return ScenarioError(
            f"{action}: the process was killed, most likely out of memory: use a smaller model, or free memory",
            kind="out_of_memory",
        )
    if code < 0:
        return ScenarioError(
            f"{action}: the process was ended by signal {signal.Signals(-code).name}", kind="unsupported"
        )
    last = (output.strip().splitlines() or ["no output"])[-1]
    return ScenarioError(f"{action}: the process ended with exit code {code} ({last[:300]})", kind="unsupported")


def main() -> None:
    """Read the work from standard input and write its result to the file of the first argument."""
    # Ctrl-C reaches the whole process group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Silence warnings of libraries; errors are raised.
    logging.disable(logging.WARNING)
    work, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: tuple[Any, Exception | None]
    try:
        outcome = work(*arguments), None
    except Exception as error:
        outcome = None, error
    target = Path(sys.argv[1])
    draft = target.with_name("draft")
    draft.write_bytes(pickle.dumps(outcome))
    os.replace(draft, target)
    os._exit(0)  # the thread that reads standard input cannot be joined


def _end_with_parent() -> None:
    """Exit when standard input closes, that is, when the parent dies, and clean up."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
