"""Checkpoints: model folders for `from_pretrained`, with the state needed to resume training.

A training folder holds `checkpoint-STEP` folders: the newest, and the one with the lowest validation loss. Each is
written under a temporary name and renamed, so it is complete or absent. Nothing in it is a pickle that could run code:
weights are safetensors, the rest is JSON and tensors read with `weights_only`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from llmtrack.errors import ModelLoadError, in_words
from llmtrack.models.disk import require_room, room_for
from llmtrack.models.folder import save_model

STATE = "training.json"
TENSORS = "training.pt"
"""Optimizer and random state; only the newest checkpoint has them."""

OUTPUT = "output"
"""The parameter that sets the training folder, for messages."""

_WITH_MOMENTS = 3  # the weights, and AdamW's two moments of each
_PREFIX = "checkpoint-"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a training folder, oldest first."""
    paths = [path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
    return sorted(paths, key=_step)


def path_of(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint."""
    return folder / f"{_PREFIX}{step:06d}"


def save(
    folder: Path,
    step: int,
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> Path:
    """Write a checkpoint into a training folder after a step; return its path.

    `state` is JSON-ready data to resume from.

    Raises:
        ModelLoadError: the disk is full.
    """
    target = path_of(folder, step)
    text = json.dumps(state, indent=1)
    if (target / TENSORS).is_file():
        # Saved on an interrupt and evaluated now: the weights are the same.
        _write_atomically(target / STATE, text)
        return target
    scratch = folder / f".{target.name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    with room_for(scratch, _WITH_MOMENTS * _weight_bytes(model), OUTPUT):
        scratch.mkdir(parents=True)
        save_model(scratch, model, tokenizer)
        device = next(model.parameters()).device
        tensors: dict[str, Any] = {"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        if device.type == "cuda":
            tensors["cuda_random"] = torch.cuda.get_rng_state(device)
        torch.save(tensors, scratch / TENSORS)
        _write_atomically(scratch / STATE, text)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(scratch, target)
    return target


def require_room_for_all(folder: Path, model: Any, saves: int) -> None:
    """Check that so many saves fit on the disk: the best, the newest, and the checkpoint being written.

    Raises:
        ModelLoadError: they do not fit.
    """
    needed = min(saves, 2) * _WITH_MOMENTS + (saves > 2)
    require_room(folder, needed * _weight_bytes(model), OUTPUT)


def _weight_bytes(model: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def prune(folder: Path, keep: set[int]) -> None:
    """Remove all checkpoints but the newest, and the models of the steps to keep."""
    *older, _ = checkpoints(folder)
    for path in older:
        if _step(path) in keep:
            (path / TENSORS).unlink(missing_ok=True)
        else:
            shutil.rmtree(path)


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None."""
    return next(reversed(checkpoints(folder)), None)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the JSON data of a checkpoint.

    Raises:
        ModelLoadError: it is missing or damaged.
    """
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(checkpoint, error) from error
    if not isinstance(state, dict):
        raise _damaged(checkpoint, TypeError("not a JSON object"))
    return state


def restore(checkpoint: Path, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Restore the state of the optimizer and the random generators.

    Raises:
        ModelLoadError: the state is missing, damaged, or of another model.
    """
    try:
        tensors = torch.load(checkpoint / TENSORS, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(tensors["optimizer"])
        torch.set_rng_state(tensors["random"])
        if device.type == "cuda" and "cuda_random" in tensors:
            torch.cuda.set_rng_state(tensors["cuda_random"], device)
    except Exception as error:  # a damaged file can raise anything
        raise _damaged(checkpoint, error) from error


def model_files(checkpoint: Path) -> list[Path]:
    """List the model and tokenizer files of a checkpoint."""
    return sorted(path for path in checkpoint.iterdir() if path.name not in (STATE, TENSORS))


def export_model(checkpoint: Path, folder: Path) -> Path:
    """Fill a folder with a checkpoint's model, without training state; return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in model_files(checkpoint):
        try:
            os.link(path, folder / path.name)  # a checkpoint's files never change
        except OSError:
            shutil.copyfile(path, folder / path.name)
    return folder


def _write_atomically(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.new")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _step(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _damaged(checkpoint: Path, error: Exception) -> ModelLoadError:
    unreadable = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    remedy = "make it readable, and run this again" if unreadable else "train anew with resume=false"
    return ModelLoadError(f"{checkpoint} cannot be resumed ({in_words(error)[:200]}): {remedy}")
