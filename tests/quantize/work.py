"""Work for other processes: in a module of its own, since they import neither pytest nor what the tests need."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmtrack.errors import ScenarioError


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def odd(*arguments: object) -> None:
    raise RuntimeError("Unsupported operator\nin layer 3")


def dies(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(*arguments: object) -> None:
    os.write(2, b"libfast.so is missing\n")  # by a library, not through Python
    os._exit(9)


def wrapped(*arguments: object) -> None:
    raise ScenarioError("cannot be exported", kind="unsupported") from RuntimeError("file write failed")


def waits(note: str, seconds: float) -> None:
    Path(note).write_text(str(os.getpid()))
    time.sleep(seconds)


def imported(jobs: Iterable[tuple[Any, ...]]) -> list[str]:
    """Quantize, and return which of the packages that take seconds have been imported."""
    from llmtrack.quantize import build

    for arguments in jobs:
        build._quantize(*arguments)
    return [name for name in ("torch", "transformers") if name in sys.modules]
