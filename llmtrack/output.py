"""Output that carries no credentials, replaces what its encoding does not have, and outlives its reader."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from llmtrack.redaction import redact, secrets_of

if TYPE_CHECKING:
    from rich.console import Console

_REPLACE = "llmtrack.replace"
# How our own signs are written where only ASCII can be.
_ASCII = {"–": "-", "—": "-", "·": "|", "±": "+/-", "…": "...", "×": "x", "→": "->", "µ": "u", "•": "-"}


def console_of(**settings: Any) -> Console:
    """Return a console that writes where it is told to: rich's own shows everything as output of the cell in a notebook.

    Args:
        settings: of `rich.console.Console`.
    """
    from rich.console import Console

    return Console(force_jupyter=False, **settings)


def replace_unknown(stream: Any) -> None:
    """Have a stream replace the characters that its encoding does not have, instead of failing."""
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors=_REPLACE)


def protected(stream: IO[str] | None) -> IO[str] | None:
    """Return a stream that never fails and writes no credentials.

    For output beside what is measured and tracked, which must not be lost because a reader went away.
    """
    if stream is None or isinstance(stream, _Protected):
        return stream
    replace_unknown(stream)
    return cast("IO[str]", _Protected(stream))


@contextlib.contextmanager
def protected_output() -> Iterator[None]:
    """Protect standard output and error: what libraries print, log and warn of passes here, too."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("Any", tuple(map(protected, before)))
    yield
    # Not where an error ends the program: its traceback passes here, too.
    sys.stdout, sys.stderr = before


class _Protected:
    """A text stream whose reader may go (`| head -1`), whose disk may fill up, or that may be closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._secrets = secrets_of(os.environ)

    def write(self, text: str) -> int:
        """Write what can be written."""
        text = redact(text, self._secrets)
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
