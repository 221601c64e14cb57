"""The fenced blocks of the documents, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# Generated pages, which have their own tests.
GENERATED = {"docs/commands.md", "docs/metrics.md"}
DOCUMENTS = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if path.relative_to(ROOT).as_posix() not in GENERATED
]

_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)

_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Attributes:
        place: document and line of its first line.
        language: of the fence.
        text: its content.
    """

    place: str
    language: str
    text: str


def blocks() -> list[Block]:
    """Return the fenced blocks of all documents."""
    return [block for path in DOCUMENTS for block in blocks_of(path)]


def blocks_of(path: Path) -> Iterator[Block]:
    """Return the fenced blocks of a document."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCED.finditer(text):
        line = text[: match.start()].count("\n") + 2
        yield Block(f"{path.relative_to(ROOT).as_posix()}:{line}", match["language"], match["text"])


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block or of a workflow's steps, one line each, without comments."""
    scripts = [block.text] if block.language == "bash" else list(_scripts(yaml.safe_load(block.text)))
    lines = "\n".join(scripts).replace("\\\n", " ").splitlines()
    # Like a shell, and unlike shlex, keep # inside a word.
    words = (shlex.split(_COMMENT.sub("", line)) for line in lines)
    return [shlex.join(line) for line in words if line]


def _scripts(part: Any) -> Iterator[str]:
    """Yield the values of `run` anywhere in a workflow."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [value] if key == "run" and isinstance(value, str) else _scripts(value)
    elif isinstance(part, list):
        for item in part:
            yield from _scripts(item)
