"""Show libraries a safe view of a model folder: links to allow-listed files, and settings without references to code.

transformers and other runtimes' converters run code in a model's folder, some even with `trust_remote_code` off. They
never receive the folder itself.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from llmtrack.errors import ModelLoadError
from llmtrack.models.cache import cache_root
from llmtrack.models.digests import TOKENIZER_FILES
from llmtrack.models.load_errors import NEEDS_CODE, read_settings
from llmtrack.models.weights import INDEXES, weight_files
from llmtrack.spec.serialization import digest

LOCAL: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}
"""Arguments for every `from_pretrained`: no code, no network."""

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
# Suffixes of pure data; tokenizer files with others are hidden.
_DATA = frozenset({".json", ".txt", ".model", ".jinja", ".spm", ".bpe", ".codes", ".tiktoken"})
_TEMPLATES = "additional_chat_templates"
# Settings that make a library load code from a folder or the hub.
_CODE = frozenset({"auto_map", "custom_generate", "custom_pipelines", "trust_remote_code"})
_IMPLEMENTATION = "_implementation"
# transformers' messages for unknown classes.
_UNKNOWN_CLASS = re.compile("Unrecognized|does not recognize|does not exist")


def visible_files(folder: Path) -> dict[str, Path]:
    """Return the allow-listed files of a model folder by name.

    Raises:
        ModelLoadError: the weight index is damaged, or names files outside of the folder.
    """
    kind, weights = weight_files(folder)
    files = {path.relative_to(folder).as_posix(): path for path in weights}
    # An index beside a single weight file belongs to another model.
    if (index := INDEXES.get(kind)) and index.removesuffix(".index.json") not in files:
        files[index] = folder / index
    files |= {name: folder / name for name in _SETTINGS if (folder / name).is_file()}
    for path in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*.jinja")):
        is_tokenizer = any(fnmatch(path.name, pattern) for pattern in TOKENIZER_FILES)
        is_template = path.parent.name == _TEMPLATES
        if path.suffix in _DATA and (is_tokenizer or is_template) and path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    return files


def safe_view(folder: Path) -> Path:
    """Return a folder with only the visible files of a model, cached until these change; links where possible.

    Raises:
        ModelLoadError: as `visible_files`, or its settings cannot be read, or it cannot be created.
    """
    files = visible_files(folder)
    written = {name: clean for name in _SETTINGS if name in files and (clean := _without_code(files[name]))}
    targets = {name: str(path.resolve()) for name, path in files.items() if name not in written}
    stem = digest([str(folder.resolve()), targets, written, _stamps(files)])
    try:
        try:
            return _ensure(cache_root() / "views", stem, targets, written)
        except OSError:
            return _ensure(_process_folder(), stem, targets, written)
    except OSError as error:
        raise ModelLoadError(
            f"a view of {folder} cannot be created ({error.strerror or error}): free some space, or set LLMTRACK_CACHE to a folder "
            "that can be written"
        ) from error


@contextmanager
def isolated_file(path: Path) -> Iterator[Path]:
    """Provide a folder with only a link to one file."""
    with tempfile.TemporaryDirectory(prefix="llmtrack-view-") as folder:
        _link(str(path.resolve()), Path(folder, path.name))
        yield Path(folder)


def names_custom_code(folder: Path) -> bool:
    """Return whether a model's settings refer to custom code."""
    return any(_without_code(folder / name) is not None for name in _SETTINGS if (folder / name).is_file())


@contextmanager
def explaining_custom_code(folder: Path) -> Iterator[None]:
    """Explain that a model needs custom code, if transformers lacks its class and its settings name code."""
    try:
        yield
    except Exception as error:
        if _UNKNOWN_CLASS.search(str(error)) and names_custom_code(folder):
            raise ModelLoadError(NEEDS_CODE) from error
        raise


def _ensure(parent: Path, stem: str, targets: Mapping[str, str], written: Mapping[str, str]) -> Path:
    """Return a view, creating it if it is missing or incomplete.

    Raises:
        OSError: it cannot be created.
    """
    ready = parent / stem
    if _is_complete(ready, targets, written):
        return ready
    parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{stem}-", dir=parent))
    try:
        for name, target in targets.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            _link(target, fresh / name)
        for name, text in written.items():
            (fresh / name).write_text(text, encoding="utf-8")
        with suppress(OSError):
            os.replace(fresh, ready)
        if _is_complete(ready, targets, written):
            return ready
        # The existing one was modified: replace it.
        shutil.rmtree(ready, ignore_errors=True)
        os.replace(fresh, ready)
        return ready
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_complete(ready: Path, targets: Mapping[str, str], written: Mapping[str, str]) -> bool:
    """Return whether a view has exactly the expected content."""
    present = {path.relative_to(ready).as_posix() for path in ready.rglob("*") if not path.is_dir()}
    if present != targets.keys() | written.keys():
        return False
    try:
        return all(_is_same(ready / name, Path(target)) for name, target in targets.items()) and all(
            (ready / name).read_text(encoding="utf-8") == text for name, text in written.items()
        )
    except OSError:
        return False


def _is_same(path: Path, target: Path) -> bool:
    is_copy = not path.is_symlink() and path.stat().st_size == target.stat().st_size
    return os.path.samefile(path, target) or is_copy


_process_folders: dict[int, Path] = {}


def _process_folder() -> Path:
    """Return this process's temporary folder of views, used if the cache is read-only."""
    pid = os.getpid()
    if pid not in _process_folders:
        _process_folders[pid] = Path(tempfile.mkdtemp(prefix="llmtrack-views-"))
        atexit.register(_remove_folder, pid)
    return _process_folders[pid]


def _remove_folder(pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(_process_folders[pid], ignore_errors=True)


def _link(target: str, path: Path) -> None:
    try:
        path.symlink_to(target)
    except (OSError, NotImplementedError):  # Windows restricts symlinks
        try:
            os.link(target, path)
        except OSError:
            shutil.copyfile(target, path)


def _stamps(files: Mapping[str, Path]) -> list[Any]:
    """Return values that change when a file is replaced, for views that are copies."""
    return [(name, state.st_size, state.st_mtime_ns) for name, path in files.items() for state in [path.stat()]]


def _without_code(path: Path) -> str | None:
    """Return settings without references to code, as JSON; None if there are none.

    Raises:
        ModelLoadError: they cannot be read.
    """
    # A file that is unreadable now might be readable by a library a moment later, with its code.
    try:
        settings = read_settings(path)
        clean = _stripped(settings)
        return None if clean == settings else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"
    except RecursionError as error:
        raise ModelLoadError(f"{path.name} is damaged (it is nested too deeply): fetch it again") from error


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(item) for name, item in value.items() if not _is_code(name, item)}
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def _is_code(name: str, value: Any) -> bool:
    """Return whether a setting refers to code: a class, or a kernel to download (`org/name`)."""
    if name in _CODE:
        return True
    return name.removesuffix("_internal").endswith(_IMPLEMENTATION) and "/" in json.dumps(value)
