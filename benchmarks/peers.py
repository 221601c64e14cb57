"""Programs that llmtrack is compared with, each in an environment of its own: made by uv from pinned requirements, in the cache."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmtrack.convert.environment import BuildEnvironment, pinned

REQUIREMENTS = Path(__file__).with_name("requirements")


def environment(name: str) -> BuildEnvironment:
    """Return the environment of a peer, which may not have been made yet; PyTorch is the one that llmtrack uses.

    Args:
        name: of its file in `requirements`.
    """
    return BuildEnvironment(name, pinned(name, REQUIREMENTS))


def version(name: str) -> str:
    """Return a peer and its pinned version, in words."""
    (line,) = (each for each in environment(name).requirements if each.startswith(f"{name}=="))
    return line.partition(" ")[0].replace("==", " ")


def ask(name: str, script: Path, arguments: Sequence[str]) -> Any:
    """Run a script by a peer's Python and return what it left, as JSON, in the file that its last argument names.

    Raises:
        LlmtrackError: the environment cannot be made, or the script failed; says why in one line.
    """
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "left.json")
        environment(name).run(f"running {name}", [str(script), *arguments, str(left)], Path(folder))
        return json.loads(left.read_text(encoding="utf-8"))
