"""Write text to terminals and files without control characters or credentials, tolerating encodings and closed streams.

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
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_LONGEST_LINE = 2000
_ENDS = 400
_REPLACE = "llmtrack.replace"
# ASCII replacements of the symbols that llmtrack prints.
_ASCII = {"–": "-", "—": "-", "·": "|", "±": "+/-", "…": "...", "×": "x", "→": "->", "µ": "u", "•": "-"}


def neutralize(text: str) -> str:
    """Replace control characters; keep line ends and tabs."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def on_one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(neutralize(text).split())


def neutral_console(**settings: Any) -> Console:
    """Create a rich console that neutralizes texts and honours its `file`, even in a notebook.

    Output to memory has no escape codes: Jupyter kernels set FORCE_COLOR, which makes any file a terminal.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Neutral(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **kwargs):
                # Its own styles and cursor moves stay.
                yield segment if segment.control else Segment(neutralize(segment.text), segment.style)

    if isinstance(settings.get("file"), io.StringIO):
        settings = {"force_terminal": False, **settings}
    return Neutral(force_jupyter=False, **settings)


def emit(console: Console, text: str) -> None:
    """Write laid-out text to a console's stream."""
    console.file.write(neutralize(text))


def print_text(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text; on standard error, redact credentials and shorten long lines."""
    import click

    if err:
        lines = redact(text, secrets_of(os.environ)).split("\n")
        # A long line has an argument in its middle, and cause and remedy around it.
        text = "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_ENDS]}…{line[-_ENDS:]}" for line in lines)
    click.echo(neutralize(text), err=err, nl=nl)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; too many levels for Python raise an OSError, too."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder)) from None


def write_neutral(path: Path, text: str) -> None:
    """Write a text file without control characters."""
    path.write_text(neutralize(text), encoding="utf-8")


def neutral_json(value: Any, **settings: Any) -> str:
    """Serialize to JSON with control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, **settings)
    return _CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], text)


def replace_unencodable(stream: Any) -> None:
    """Replace characters missing from a stream's encoding, instead of failing."""
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors=_REPLACE)


def protect_stream(stream: IO[str] | None) -> IO[str] | None:
    """Wrap a stream so that writing never fails and never shows credentials: measuring must outlive a closed reader."""
    if stream is None or isinstance(stream, _Protected):
        return stream
    replace_unencodable(stream)
    return cast("IO[str]", _Protected(stream))


@contextlib.contextmanager
def protected_output() -> Iterator[None]:
    """Protect standard output and error, also from what libraries print, log and warn."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("Any", tuple(map(protect_stream, before)))
    yield
    # Not in a `finally`: the traceback of an error must be protected, too.
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
            self._redirect_to_null()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._redirect_to_null()

    def _redirect_to_null(self) -> None:
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
