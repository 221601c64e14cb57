"""The only output path for text: no control characters or credentials, tolerant of encodings and closed streams.

Texts come from models, prompts and other people's runs. A test rejects any other output to a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
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

# Control characters, bidirectional marks, other line separators and surrogates. Joiners stay: emoji and Persian
# need them.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_LONGEST_LINE = 2000
_ENDS = 400
_REPLACE = "llmtrack.replace"
# ASCII replacements of the symbols that llmtrack prints.
_ASCII = {"–": "-", "—": "-", "·": "|", "±": "+/-", "…": "...", "×": "x", "→": "->", "µ": "u", "•": "-"}


def shown(text: str) -> str:
    """Replace control characters; keep line ends and tabs."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def on_one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(shown(text).split())


def console_of(**settings: Any) -> Console:
    """Return a rich console that honours its `file`; in a notebook, rich's own always writes to the cell output.

    What is written to memory has no escape codes: Jupyter kernels set FORCE_COLOR, which makes any file a terminal.

    Args:
        settings: arguments of `rich.console.Console`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Neutral(Console):
        """A console that neutralizes control characters in texts, but not its own styles and cursor moves."""

        def render(self, *given: Any, **named: Any) -> Iterable[Segment]:
            for segment in super().render(*given, **named):
                yield segment if segment.control else Segment(shown(segment.text), segment.style)

    if isinstance(settings.get("file"), io.StringIO):
        settings = {"force_terminal": False, **settings}
    return Neutral(force_jupyter=False, **settings)


def emit(console: Console, text: str) -> None:
    """Write text that is already laid out to a console's stream."""
    console.file.write(shown(text))


def print_text(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text; on standard error, hide credentials and truncate long lines."""
    import click

    if err:
        lines = redact(text, secrets_of(os.environ)).split("\n")
        # The middle of a long line is the value that was given; cause and remedy stand around it.
        text = "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_ENDS]}…{line[-_ENDS:]}" for line in lines)
    click.echo(shown(text), err=err, nl=nl)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents.

    Raises:
        OSError: it cannot be created; also if the path has too many levels for Python.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder)) from None


def keep_text(path: Path, text: str) -> None:
    """Write a text file without control characters."""
    path.write_text(shown(text), encoding="utf-8")


def as_json(value: Any, **settings: Any) -> str:
    """Return JSON with control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, **settings)
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text)


def replace_unknown(stream: Any) -> None:
    """Make a stream replace characters that its encoding lacks, instead of failing."""
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors=_REPLACE)


def protected(stream: IO[str] | None) -> IO[str] | None:
    """Wrap a stream so that writing never fails and never shows credentials.

    For output beside measuring and tracking, which must not be lost when a reader disappears.
    """
    if stream is None or isinstance(stream, _Protected):
        return stream
    replace_unknown(stream)
    return cast("IO[str]", _Protected(stream))


@contextlib.contextmanager
def protected_output() -> Iterator[None]:
    """Protect standard output and error, including what libraries print, log and warn."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("Any", tuple(map(protected, before)))
    yield
    # Not restored on an error: its traceback must be protected, too.
    sys.stdout, sys.stderr = before


class _Protected:
    """A text stream that survives a closed pipe (`| head -1`), a full disk or a closed file."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._secrets = secrets_of(os.environ)

    def write(self, text: str) -> int:
        text = redact(text, self._secrets)
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            self._go_on_without()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._go_on_without()

    def _go_on_without(self) -> None:
        # Buffered text would fail again at interpreter exit and change the exit code.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in text), error.end


codecs.register_error(_REPLACE, _replacement)
