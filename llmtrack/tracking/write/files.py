"""Prepare files for MLflow: confined to their root, without credentials, and without copying if possible."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact

_TEXT_SUFFIXES = frozenset({".csv", ".html", ".json", ".log", ".md", ".svg", ".txt", ".yaml", ".yml"})


@contextmanager
def linked(files: Mapping[str, bytes | Path]) -> Iterator[tuple[Path | None, list[str]]]:
    """Provide a folder of links to the files, or None, and the names of those that could not be linked."""
    if not files:
        yield None, []
        return
    lost: list[str] = []
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmtrack-")))
        except OSError:
            yield None, list(files)
            return
        for name, content in files.items():
            path = folder / safe_path(name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    _link(content.absolute(), path)
                else:
                    path.write_bytes(content)
            except OSError:
                path.unlink(missing_ok=True)
                lost.append(name)
        yield folder, lost


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except (OSError, NotImplementedError):
        shutil.copyfile(source, target)


def clean_content(path: Path, secrets: tuple[str, ...]) -> bytes | Path:
    """Return a text file's content without credentials, or the path of any other file.

    Raises:
        TrackingError: it cannot be read.
    """
    if path.suffix.lower() not in _TEXT_SUFFIXES:
        return path
    try:
        return redact(path.read_text(encoding="utf-8"), secrets).encode()
    except UnicodeDecodeError:
        return path
    except OSError as error:
        raise TrackingError(f"cannot read the file {path} of a study: {error.strerror}") from error


def safe_path(name: str) -> str:
    """Confine an artifact path to its root."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    return "/".join(parts) or "file"
