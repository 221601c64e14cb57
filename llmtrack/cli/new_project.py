"""Write a project folder for `mlflow run`: the entry points of an installed llmtrack, and an example text to score."""

from __future__ import annotations

import shlex
from pathlib import Path

from llmtrack.errors import UsageError, in_words
from llmtrack.host.console import make_folder
from llmtrack.host.packages import installed_version
from llmtrack.version import FOLDER

# Part of a wheel; a checkout is such a folder itself.
PROJECT = FOLDER / "project"
CORPUS = "texts.jsonl"
_TEXTS = (
    "The harbour wakes before the town does, and the first sound is the rope on the quay.",
    "A recipe says what to do; it seldom says why, and the why is what one remembers.",
    "Trains that are on time are not talked about, which is why nobody believes in them.",
)
_HEAD = """# The experiments of llmtrack as entry points of MLflow. `none` stands for nothing, since MLflow passes no empty parameter.
"""


def write_project(folder: Path) -> list[Path]:
    """Write MLproject, conda.yaml and an example corpus; return their paths.

    Args:
        folder: created if missing.

    Raises:
        UsageError: llmtrack runs from a checkout, a file exists already, or the folder cannot be written.
    """
    if not PROJECT.is_dir():
        root = FOLDER.parent
        raise UsageError(
            f"this llmtrack runs from a checkout, which is such a folder: mlflow run {shlex.quote(str(root))} -e baseline --env-manager local"
        )
    texts = {
        "MLproject": _HEAD + _without_comments((PROJECT / "MLproject").read_text(encoding="utf-8")),
        "conda.yaml": _with_llmtrack((PROJECT / "conda.yaml").read_text(encoding="utf-8")),
        CORPUS: "".join(f'{{"text": "{text}"}}\n' for text in _TEXTS),
    }
    try:
        if existing := [name for name in texts if (folder / name).exists()]:
            raise UsageError(f"{folder} has {', '.join(existing)} already: choose another folder")
        make_folder(folder)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the folder cannot be written ({in_words(error)}): choose another one") from error
    return [folder / name for name in texts]


def _without_comments(project: str) -> str:
    """Remove the leading comment of an MLproject, which is for developers of llmtrack."""
    lines = project.splitlines(keepends=True)
    return "".join(lines[next(index for index, line in enumerate(lines) if not line.startswith("#")) :])


def _with_llmtrack(conda: str) -> str:
    """Add llmtrack itself to an environment, as the folder is not its checkout."""
    lines = [line for line in conda.splitlines() if not line.startswith("#") and "constraints.txt" not in line]
    release = installed_version("llmtrack")
    return "\n".join([*lines, f"      - llmtrack{f'=={release}' if release else ''}"]) + "\n"
