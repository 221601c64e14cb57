"""What libraries see of a model folder: links to the files of an allow-list, and settings that name no code.

transformers and the converters of other runtimes run code that lies in a model's folder, some of it although
`trust_remote_code` is off. None of them is ever given the folder itself.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from llmtrack.errors import ModelLoadError
from llmtrack.models.cache import cache_root
from llmtrack.models.digests import TOKENIZER_FILES, weight_files
from llmtrack.spec.serialization import digest

LOCAL: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}
"""Arguments of every `from_pretrained`: no code, no network."""

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
# Suffixes of data that no program runs; a tokenizer's file of another one is not seen.
_DATA = frozenset({".json", ".txt", ".model", ".jinja", ".spm", ".bpe", ".codes", ".tiktoken"})
_TEMPLATES = "additional_chat_templates"
# Settings that make a library look for code, in a folder or on the hub.
_CODE = frozenset({"auto_map", "custom_generate", "custom_pipelines", "trust_remote_code"})
_IMPLEMENTATION = "_implementation"


def seen(folder: Path) -> dict[str, Path]:
    """Return the files of a model folder that libraries may see, by their names in it.

    Raises:
        ModelLoadError: the weights' index is damaged, or names files outside of the folder.
    """
    kind, weights = weight_files(folder)
    found = {path.relative_to(folder).as_posix(): path for path in weights}
    if kind != "none":
        single = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
        # The index of weights that are one file is another model's.
        names = [f"{single}.index.json"] if single not in found else []
        found |= {name: folder / name for name in names}
    found |= {name: folder / name for name in _SETTINGS if (folder / name).is_file()}
    for path in (*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*.jinja")):
        named = any(fnmatch(path.name, pattern) for pattern in TOKENIZER_FILES)
        template = path.parent.name == _TEMPLATES
        if path.suffix in _DATA and (named or template) and path.is_file():
            found[path.relative_to(folder).as_posix()] = path
    return found


def view(folder: Path) -> Path:
    """Return a folder with the files of a model that libraries may see, and no others.

    It is kept in the cache, once for each state of the model's folder. Nothing of the model is copied where links can be made.

    Raises:
        ModelLoadError: as `seen`, or there is no place for it.
    """
    files = seen(folder)
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
def alone(path: Path) -> Iterator[Path]:
    """Give a folder that holds a link to one file and nothing else."""
    with tempfile.TemporaryDirectory(prefix="llmtrack-view-") as folder:
        _link(str(path.resolve()), Path(folder, path.name))
        yield Path(folder)


def names_code(folder: Path) -> bool:
    """Return whether a model's settings name code of their own."""
    return any(_without_code(folder / name) is not None for name in _SETTINGS if (folder / name).is_file())


def _made(place: Path, stem: str, targets: Mapping[str, str], written: Mapping[str, str]) -> Path:
    """Return the view of a name in a folder of views, made if it is not there as it should be.

    Raises:
        OSError: it cannot be made.
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
        # What lies there was changed: others may be reading it, and it is nothing that we made.
        shutil.rmtree(ready, ignore_errors=True)
        os.replace(fresh, ready)
        return ready
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_whole(ready: Path, targets: Mapping[str, str], written: Mapping[str, str]) -> bool:
    """Return whether a view holds what it should, and nothing else."""
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
    """Return this process's folder of views, where the cache cannot be written; it goes with the process."""
    pid = os.getpid()
    if pid not in _own_folder:
        _own_folder[pid] = Path(tempfile.mkdtemp(prefix="llmtrack-views-"))
        atexit.register(_forget, pid)
    return _own_folder[pid]


def _forget(pid: int) -> None:
    if os.getpid() == pid:  # and no process that was forked off it
        shutil.rmtree(_own_folder[pid], ignore_errors=True)


def _link(target: str, place: Path) -> None:
    try:
        place.symlink_to(target)
    except (OSError, NotImplementedError):  # Windows permits it to few
        try:
            os.link(target, place)
        except OSError:
            shutil.copyfile(target, place)


def _stamps(files: Mapping[str, Path]) -> list[Any]:
    """Return what changes when a file is replaced: where no links can be made, its view is a copy."""
    return [(name, state.st_size, state.st_mtime_ns) for name, path in files.items() for state in [path.stat()]]


def _without_code(path: Path) -> str | None:
    """Return settings without what names code, as JSON; None where nothing does."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # Whoever reads it says so.
    clean = _stripped(settings)
    return None if clean == settings else json.dumps(clean, indent=2, ensure_ascii=False) + "\n"


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(each) for name, each in value.items() if not _is_code(name, each)}
    return [_stripped(each) for each in value] if isinstance(value, list) else value


def _is_code(name: str, value: Any) -> bool:
    """Return whether a setting names code: of a class, or of a kernel that would be fetched (`org/name`)."""
    if name in _CODE:
        return True
    return name.removesuffix("_internal").endswith(_IMPLEMENTATION) and "/" in json.dumps(value)
