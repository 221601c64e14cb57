"""The console for people, and for logs: what it cannot show is replaced, and what cannot be written is lost alone."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from typing import IO, Any, cast

from rich.console import Console

from llmtrack.report.escape import plain

LOG_WIDTH = 1000

_REPLACE = "llmtrack.replace"
# How our own signs are written where only ASCII can be.
_ASCII = {"–": "-", "—": "-", "·": "|", "±": "+/-", "…": "...", "×": "x", "→": "->", "µ": "u", "•": "-"}


def make_console() -> Console:
    """Return the console for a command's output; in a log, lines are as wide as they need to be."""
    stream = lossy(sys.stdout)
    console = Console(file=stream, highlight=False, emoji=False)
    return (
        console
        if console.is_terminal
        else Console(file=stream, highlight=False, emoji=False, width=LOG_WIDTH)
    )


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text as it is, in lines that are not wrapped at a guessed width: a log is read by programs too."""
    console.print(plain(text, style), soft_wrap=True)


def replace_unknown(stream: Any) -> None:
    """Have a stream replace the characters that its encoding does not have, instead of failing."""
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors=_REPLACE)


def lossy(stream: IO[str] | None) -> IO[str] | None:
    """Return a stream that never fails: what was measured must not be lost because a reader went away."""
    if stream is None:
        return None
    replace_unknown(stream)
    return cast("IO[str]", _Lossy(stream))


class _Lossy:
    """A text stream whose reader may go (`| head -1`), whose disk may fill up, or that may be closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            self._go_on_without()
            return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._go_on_without()

    def _go_on_without(self) -> None:
        # What is still buffered would fail once more when the interpreter ends, and change its exit code.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in text), error.end


codecs.register_error(_REPLACE, _replacement)
