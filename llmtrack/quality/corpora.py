"""Load the text to score: a built-in corpus or a file.

A corpus is a sequence of documents, identified by a digest of its texts, so that perplexities are only compared on
equal text, whatever file it came from.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TypeVar

from llmtrack.errors import UsageError
from llmtrack.host.formatting import GIB
from llmtrack.measure.memory import available_bytes
from llmtrack.spec.parameter import require_text
from llmtrack.spec.serialization import digest as digest_of
from llmtrack.spec.task import BUILTIN_TEXT, NAMED_CORPORA, PYDOC

Row = TypeVar("Row")

# Memory per byte of a file: the bytes, the text, and its copies while it is split.
_READING_BYTES = 6

_BOM = b"\xef\xbb\xbf"
_ACCEPTED = f"give {', '.join(f'`{name}`' for name in NAMED_CORPORA)}, or the path of a .txt or .jsonl file"
_JSON_LINE = 'one object with a string field `text` per line, such as {"text": "One document."}'

# Form feeds take precedence: source code contains runs of blank lines that separate nothing. A single blank
# line always ends a paragraph within a document.
_FORM_FEED_LINE = re.compile(r"^[ \t]*\f[ \t\f]*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
_BLANK_LINES_BEFORE = re.compile(r"\A(?:[^\S\n]*\n)+")
_JSON_TYPES = {list: "a list", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


@dataclass(frozen=True)
class Corpus:
    r"""Documents to score.

    Attributes:
        name: `builtin`, `pydoc` or the file's name; without folders, since it is tracked.
        texts: the documents, none empty, with `\n` as line end.
        digest: over the texts and their order only.
        blank: number of omitted blank rows.
    """

    name: str
    texts: tuple[str, ...]
    digest: str
    blank: int = field(default=0, compare=False)

    @classmethod
    def from_texts(cls, name: str, texts: Iterable[str]) -> Corpus:
        r"""Normalize texts for scoring and digesting, and drop blank ones.

        Line ends become `\n`; leading blank lines and trailing white space are removed, because a text file cannot
        distinguish them from its separators.

        Raises:
            UsageError: no text is left.
        """
        rows = [_canonical(text) for text in texts]
        filled = tuple(text for text in rows if text)
        if not filled:
            raise UsageError(
                f"corpus {name!r} holds no text: a perplexity needs at least one document that is not blank"
            )
        return cls(name, filled, digest_of(list(filled)), len(rows) - len(filled))

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all texts: the denominator of bits per byte."""
        return sum(len(text.encode()) for text in self.texts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about omitted rows."""
        if not self.blank:
            return ()
        return (f"{self.blank} blank row(s) of the corpus {self.name!r} were omitted: they hold no text",)


def load_corpus(spec: str) -> Corpus:
    """Load a corpus by its name or path.

    - `builtin`: about 5,000 tokens of English in many registers, written for this project.
    - `pydoc`: the language reference behind Python's `help()`, about 450 KB of English: 79 topics in Python 3.11, in
      alphabetical order. It differs between versions of Python, and so does its digest.
    - `PATH.txt`: documents are separated by lines that hold only a form feed; without such lines, by two or more
      consecutive blank lines; without either, the file is one document.
    - `PATH.jsonl`: one document per line: an object with a string field `text`, or a bare JSON string.

    Blank documents, and blank lines between those of a `.jsonl`, are omitted and counted. Files are UTF-8, with or
    without a byte order mark. `~` is expanded.

    Raises:
        UsageError: no such file, a folder, a pipe, another extension, unreadable, too large for memory, not UTF-8, NUL
            bytes, an invalid line, no text.
    """
    spec = require_text("corpus", spec)
    if spec in _NAMED:
        return Corpus.from_texts(spec, _NAMED[spec]())
    path = Path(os.path.expanduser(spec))
    reader = _reader(spec, path)
    try:
        _check_size(path.name, path.stat().st_size)
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"corpus {path.name!r} cannot be read ({error.strerror}): check its permissions") from error
    return Corpus.from_texts(path.name, reader(_decode(data, path.name), path.name))


def _builtin() -> list[str]:
    data = resources.files("llmtrack.quality").joinpath("data", "builtin.jsonl").read_bytes()
    return _json_lines(_decode(data, BUILTIN_TEXT), BUILTIN_TEXT)


def _pydoc_topics() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UsageError(
            f"corpus {PYDOC!r} is not part of this Python: use corpus={BUILTIN_TEXT}, or a file"
        ) from error
    return [topics[name] for name in sorted(topics)]


_NAMED: dict[str, Callable[[], list[str]]] = {BUILTIN_TEXT: _builtin, PYDOC: _pydoc_topics}


def _check_size(name: str, size: int) -> None:
    free = available_bytes()
    if size * _READING_BYTES > free:
        raise UsageError(
            f"corpus {name!r} is {size / GIB:,.1f} GiB, and reading it takes about {size * _READING_BYTES / GIB:,.1f} GiB of memory "
            f"where {free / GIB:,.1f} GiB are free: give a part of it"
        )


def _reader(spec: str, path: Path) -> Callable[[str, str], list[str]]:
    """Return the function that splits a file into documents; refuse what is no file of a supported kind."""
    # os.path returns False for names that the system rejects (too long, a NUL); Path raises for some.
    if not spec.strip():
        raise UsageError(f"no corpus given: {_ACCEPTED}")
    if os.path.isdir(path):
        raise UsageError(f"corpus {spec!r} is a folder: {_ACCEPTED}")
    if not os.path.exists(path):
        raise UsageError(f"no corpus {spec!r}: {_near(path)}{_ACCEPTED} (absolute, or relative to the working folder)")
    if not os.path.isfile(path):  # reading a pipe blocks, and a device may never end
        raise UsageError(f"corpus {spec!r} is a pipe or a device, not a regular file: copy its text to a file")
    try:
        return _READERS[path.suffix.lower()]
    except KeyError:
        raise UsageError(
            f"corpus {path.name!r} has the extension {path.suffix!r}: convert it to .txt (plain text) "
            f"or to .jsonl ({_JSON_LINE})"
        ) from None


def _near(path: Path) -> str:
    """Suggest similar file names as the start of a remedy; empty if there are none."""
    try:
        files = sorted(name for name in os.listdir(path.parent) if Path(name).suffix.lower() in _READERS)
    except (OSError, ValueError):
        files = []
    same_stem = [name for name in files if Path(name).stem == path.stem]
    close = difflib.get_close_matches(path.name, [*files, *_NAMED], n=3)
    near = list(dict.fromkeys([*same_stem, *close]))[:3]
    return f"did you mean {' or '.join(map(repr, near))}? Otherwise " if near else ""


def _decode(data: bytes, name: str) -> str:
    start = len(_BOM) if data.startswith(_BOM) else 0
    # ASCII text in UTF-16 without a byte order mark is also valid UTF-8, with NULs in between.
    nul = data.find(b"\0")
    try:
        text = data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _encoding_error(data, name, start + error.start, "is not UTF-8") from error
    if nul >= 0:
        raise _encoding_error(data, name, nul, "contains NUL bytes")
    return _line_feeds(text)


def _encoding_error(data: bytes, name: str, offset: int, problem: str) -> UsageError:
    return UsageError(
        f"corpus {name!r} {problem} (byte 0x{data[offset]:02x} at offset {offset}): convert it, "
        f"for example with `iconv -f {_probable_encoding(data)} -t UTF-8 OLD > NEW`"
    )


def _probable_encoding(data: bytes) -> str:
    """Guess an encoding from its byte order mark, or from the positions of NULs: the high bytes of characters below
    U+0100.
    """
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    nuls = data.count(0)
    if not nuls:
        return "WINDOWS-1252"
    width = 4 if nuls > len(data) / 2 else 2
    order = "LE" if data[width - 1 :: width].count(0) > data[::width].count(0) else "BE"
    return f"UTF-{8 * width}{order}"


def _plain_text(text: str, name: str) -> list[str]:
    separator = _FORM_FEED_LINE if _FORM_FEED_LINE.search(text) else _BLANK_LINES
    return _without_blank_ends(separator.split(text))


def _json_lines(text: str, name: str) -> list[str]:
    # Not splitlines(): it also splits at U+2028 and others, which are valid unescaped in a JSON string.
    lines = _without_blank_ends(list(enumerate(text.split("\n"), start=1)), lambda line: line[1])
    return [_json_text(line, f"corpus {name!r}, line {number}") if line.strip() else "" for number, line in lines]


def _without_blank_ends(rows: list[Row], text_of: Callable[[Row], str] = str) -> list[Row]:
    filled = [number for number, row in enumerate(rows) if text_of(row).strip()]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def _json_text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", error)
        raise UsageError(f"{where} is not valid JSON ({reason}): write {_JSON_LINE}") from error
    if isinstance(value, dict):
        if "text" not in value:
            raise UsageError(f"{where} has no field `text` ({_keys(value)}): write {_JSON_LINE}")
        value, where = value["text"], f"{where}, field `text`"
    if not isinstance(value, str):
        kind = _JSON_TYPES.get(type(value), "an object")
        raise UsageError(f"{where} is {kind}, not a string: write {_JSON_LINE}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where} holds half of a surrogate pair (character {error.start}), which is not valid text: "
            "write the character itself, or both halves"
        ) from error
    return value


def _keys(record: dict[str, object]) -> str:
    if not record:
        return "the object is empty"
    keys = ", ".join(repr(key[:40]) for key in list(record)[:8])
    return f"keys seen: {keys}{', ...' if len(record) > 8 else ''}"


def _canonical(text: str) -> str:
    return _BLANK_LINES_BEFORE.sub("", _line_feeds(text)).rstrip()


def _line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


_READERS: dict[str, Callable[[str, str], list[str]]] = {".txt": _plain_text, ".jsonl": _json_lines}
