"""The only way out for text: no control characters, no credentials, nothing that its encoding lacks; it outlives its reader.

Texts come from models, prompts and tracked runs of others. A test refuses any other way to a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from llmtrack.host.secrets import redact, secrets_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

# What a terminal obeys, or what changes the order of the text around it: control characters, marks of direction,
# other line ends, and halves of a character. Joiners stay: emoji and Persian need them.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_LONGEST_LINE = 2000
_REPLACE = "llmtrack.replace"
# How our own signs are written where only ASCII can be.
_ASCII = {"–": "-", "—": "-", "·": "|", "±": "+/-", "…": "...", "×": "x", "→": "->", "µ": "u", "•": "-"}


def shown(text: str) -> str:
    """Return a text whose control characters are seen and not obeyed; line ends and tabs stay."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def on_one_line(text: str) -> str:
    """Return a text as one line in which nothing is obeyed."""
    return " ".join(shown(text).split())


def console_of(**settings: Any) -> Console:
    """Return a console that writes where it is told to: rich's own shows everything as output of the cell in a notebook.

    Args:
        settings: of `rich.console.Console`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Neutral(Console):
        """A console that shows control characters of texts; its own styles and moves of the cursor are obeyed."""

        def render(self, *given: Any, **named: Any) -> Iterable[Segment]:
            for segment in super().render(*given, **named):
                yield segment if segment.control else Segment(shown(segment.text), segment.style)

    return Neutral(force_jupyter=False, **settings)


def emit(console: Console, text: str) -> None:
    """Write a text to a console's stream as it is laid out already."""
    console.file.write(shown(text))


def print_text(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text; to standard error without credentials, and no more of a line than a person reads."""
    import click

    if err:
        lines = redact(text, secrets_of(os.environ)).split("\n")
        text = "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in lines)
    click.echo(shown(text), err=err, nl=nl)


def make_folder(folder: Path) -> None:
    """Make a folder that a user named, and those above it.

    Raises:
        OSError: it cannot be made; also where Python cannot count its levels.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder)) from None


def keep_text(path: Path, text: str) -> None:
    """Write a text to a file."""
    path.write_text(shown(text), encoding="utf-8")


def as_json(value: Any, **settings: Any) -> str:
    """Return JSON in which control characters are escapes, so that nothing is lost on its way out."""
    text = json.dumps(value, ensure_ascii=False, **settings)
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text)


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
