"""Cache the answers of model probes, which take a worker seconds at each start.

The key of an answer covers all that it depends on: the weights, how they were loaded, the machine, and the code
involved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from llmtrack.devices import name_of, on_gpu
from llmtrack.host.machine import cpu_model
from llmtrack.host.packages import installed_version
from llmtrack.models.cache import cache_root, write_note
from llmtrack.spec.serialization import digest, from_json, to_json

T = TypeVar("T")

_PACKAGES = ("torch", "transformers", "torchao", "accelerate")
"""Packages whose versions identify the computing code, beside llmtrack."""

_KERNELS = ("ATEN_", "ONEDNN_", "DNNL_", "MKL_", "NVIDIA_TF32_")
"""Prefixes of environment variables that select kernels."""


class ProbeCache:
    """Cached probe answers of one model.

    Args:
        origin: JSON-ready identity of the weights and what was done to them; empty to disable caching.
    """

    def __init__(self, *origin: Any) -> None:
        self._origin = origin

    def also(self, *more: Any) -> ProbeCache:
        """Return the notes of the model after a further modification."""
        return ProbeCache(*self._origin, *more) if self._origin else self

    def answer(
        self,
        probe: str,
        model: Any,
        kind: type[T],
        ask: Callable[[], T],
        worth: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return a probe's cached answer, or run the probe. Exceptions are not cached.

        Args:
            probe: its name.
            model: the transformers model in its current state.
            kind: type of the answer: a plain dataclass or number.
            ask: run the probe.
            worth: whether an answer may be cached.
        """
        if not self._origin or not _is_told_by_its_shape(model):
            return ask()
        note = folder() / f"{digest([probe, *self._origin, _shape(model), _machine(model.device), _code()])}.json"
        with suppress(OSError, ValueError):
            kept = json.loads(note.read_text(encoding="utf-8"))
            known = from_json(kept, kind)
            if to_json(known) == kept:  # ignore incomplete answers
                return known
        answer = ask()
        if worth(answer):
            write_note(note, json.dumps(to_json(answer)))
        return answer


def folder() -> Path:
    """Return the folder of the answers."""
    return cache_root() / "probes"


def _is_told_by_its_shape(model: Any) -> bool:
    """Return whether all modules, hooks and replaced `forward`s are code of known packages."""
    return all(
        _package(code) in (*_PACKAGES, "llmtrack")
        for each in model.modules()
        for code in (
            type(each),
            *each._forward_hooks.values(),
            *each._forward_pre_hooks.values(),
            *([each.forward] if "forward" in vars(each) else ()),
        )
    )


def _package(code: Any) -> str:
    return str(getattr(code, "__module__", None)).partition(".")[0]


def _shape(model: Any) -> str:
    """Return a digest of a model's modules, tensor shapes and config."""
    modules = [(name, type(each).__module__, type(each).__qualname__) for name, each in model.named_modules()]
    tensors = [
        (name, type(each).__name__, str(each.dtype), str(each.device), list(each.shape))
        for name, each in (*model.named_parameters(), *model.named_buffers())
    ]
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    attention = getattr(model.config, "_attn_implementation", None)
    return digest([modules, tensors, attention, str(sorted(config.items()))])


def _machine(device: Any) -> list[Any]:
    """Return everything else that rounding may depend on."""
    import torch

    where = str(device)
    return [
        name_of(where) if on_gpu(where) else cpu_model(),
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        {name: value for name, value in os.environ.items() if name.startswith(_KERNELS)},
        [installed_version(package) for package in _PACKAGES],
    ]


@cache
def _code() -> str:
    """Return a digest of llmtrack's code, so that answers are not kept across versions."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()
