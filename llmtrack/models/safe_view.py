"""Safe views of model folders for libraries: links to allow-listed files, and settings without references to code.

transformers and other runtimes' converters run code in a model's folder, partly even with `trust_remote_code` off. They
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
from llmtrack.models.weights import weight_files
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
    """Return the visible files of a model folder, by name.

    Raises:
        ModelLoadError: the weight index is damaged, or names files outside of the folder.
    """
    kind, weights = weight_files(folder)
    found = {path.relative_to(folder).as_posix(): path for path in weights}
    if kind != "none":
        single = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
        # An index beside a single weight file belongs to another model.
        names = [f"{single}.index.json"] if single not in found else []
        found |= {name: folder / name for name in names}
    found |= {name: folder / name for name in _SETTINGS if (folder / name).is_file()}
    for path in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*.jinja")):
        named = any(fnmatch(path.name, pattern) for pattern in TOKENIZER_FILES)
        template = path.parent.name == _TEMPLATES
        if path.suffix in _DATA and (named or template) and path.is_file():
            found[path.relative_to(folder).as_posix()] = path
    return found


def safe_view(folder: Path) -> Path:
    """Return a folder with only the visible files of a model.

    It is cached per state of the model's folder. Nothing is copied if links are possible.

    Raises:
        ModelLoadError: as `visible_files`, or its settings cannot be read, or it cannot be created.
    """
    files = visible_files(folder)
    written = {name: clean for name in _SETTINGS if name in files and (clean := _without_code(files[name]))}
    targets = {name: str(path.resolve()) for name, path in files.items() if name not in written}
    stem = digest([str(folder.resolve()), targets, written, _stamps(files)])
    try:
        try:
            return _made(cache_root() / "views", stem, targets, written)
        except OSError:
            return _made(_own(), stem, targets, written)
    except OSError as error:
        raise ModelLoadError(
            f"no view of {folder} can be made ({error.strerror or error}): free some space, or set LLMTRACK_CACHE to a folder "
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


def _made(place: Path, stem: str, targets: Mapping[str, str], written: Mapping[str, str]) -> Path:
    """Return a view, creating it if it is missing or incomplete.

    Raises:
        OSError: it cannot be created.
    """
    ready = place / stem
    if _is_whole(ready, targets, written):
        return ready
    place.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{stem}-", dir=place))
    try:
        for name, target in targets.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            _link(target, fresh / name)
        for name, text in written.items():
            (fresh / name).write_text(text, encoding="utf-8")
        with suppress(OSError):
            os.replace(fresh, ready)
        if _is_whole(ready, targets, written):
            return ready
        # The existing one was modified: others may be reading it, so leave it alone.
        shutil.rmtree(ready, ignore_errors=True)
        os.replace(fresh, ready)
        return ready
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_whole(ready: Path, targets: Mapping[str, str], written: Mapping[str, str]) -> bool:
    """Return whether a view has exactly the expected content."""
    held = {path.relative_to(ready).as_posix() for path in ready.rglob("*") if not path.is_dir()}
    if held != targets.keys() | written.keys():
        return False
    try:
        return all(_is_same(ready / name, Path(target)) for name, target in targets.items()) and all(
            (ready / name).read_text(encoding="utf-8") == text for name, text in written.items()
        )
    except OSError:
        return False


def _is_same(place: Path, target: Path) -> bool:
    copied = not place.is_symlink() and place.stat().st_size == target.stat().st_size
    return os.path.samefile(place, target) or copied


_own_folder: dict[int, Path] = {}


def _own() -> Path:
    """Return this process's temporary folder of views, used if the cache is read-only."""
    pid = os.getpid()
    if pid not in _own_folder:
        _own_folder[pid] = Path(tempfile.mkdtemp(prefix="llmtrack-views-"))
        atexit.register(_forget, pid)
    return _own_folder[pid]


def _forget(pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(_own_folder[pid], ignore_errors=True)


def _link(target: str, place: Path) -> None:
    try:
        place.symlink_to(target)
    except (OSError, NotImplementedError):  # Windows restricts symlinks
        try:
            os.link(target, place)
        except OSError:
            shutil.copyfile(target, place)


def _stamps(files: Mapping[str, Path]) -> list[Any]:
    """Return values that change when a file is replaced, for views that are copies."""
    return [(name, state.st_size, state.st_mtime_ns) for name, path in files.items() for state in [path.stat()]]


def _without_code(path: Path) -> str | None:
    """Return settings without references to code, as JSON; None if there are none.

    Raises:
        ModelLoadError: they cannot be read.
    """
    # What cannot be read now might be by a library a moment later, with its code.
    try:
        settings = read_settings(path)
        clean = _stripped(settings)
        return None if clean == settings else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"
    except RecursionError as error:
        raise ModelLoadError(f"{path.name} is damaged (it is nested too deeply): fetch it again") from error


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(each) for name, each in value.items() if not _is_code(name, each)}
    return [_stripped(each) for each in value] if isinstance(value, list) else value


def _is_code(name: str, value: Any) -> bool:
    """Return whether a setting refers to code: of a class, or of a kernel to download (`org/name`)."""
    if name in _CODE:
        return True
    return name.removesuffix("_internal").endswith(_IMPLEMENTATION) and "/" in json.dumps(value)
