"""Cache the answers of model probes, which take a worker seconds at each start.

The key covers everything that an answer depends on: weights, how they were loaded, machine, and code.
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
"""Packages whose versions, beside llmtrack's, identify the computing code."""

_KERNELS = ("ATEN_", "ONEDNN_", "DNNL_", "MKL_", "NVIDIA_TF32_")
"""Prefixes of environment variables that select kernels."""


class ProbeCache:
    """Cached probe answers of one model.

    Args:
        origin: JSON-ready identity of the weights and what was done to them; empty to disable caching.
    """

    def __init__(self, *origin: Any) -> None:
        self._origin = origin

    def extended(self, *modifications: Any) -> ProbeCache:
        """Return the cache of the model after further modifications."""
        return ProbeCache(*self._origin, *modifications) if self._origin else self

    def answer(
        self,
        probe: str,
        model: Any,
        kind: type[T],
        run: Callable[[], T],
        is_final: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return a probe's cached answer, or run the probe. Exceptions are not cached.

        Args:
            probe: its name.
            model: the transformers model in its current state.
            kind: type of the answer: a plain dataclass or number.
            is_final: whether an answer may be cached.
        """
        if not self._origin or not _is_known_code(model):
            return run()
        note = folder() / f"{digest([probe, *self._origin, _shape(model), _machine(model.device), _code()])}.json"
        with suppress(OSError, ValueError):
            cached = json.loads(note.read_text(encoding="utf-8"))
            answer = from_json(cached, kind)
            if to_json(answer) == cached:  # ignore incomplete answers
                return answer
        answer = run()
        if is_final(answer):
            write_note(note, json.dumps(to_json(answer)))
        return answer


def folder() -> Path:
    """Return the folder of the answers."""
    return cache_root() / "probes"


def _is_known_code(model: Any) -> bool:
    """Return whether all modules, hooks and replaced `forward`s come from packages in the key."""
    return all(
        _package(code) in (*_PACKAGES, "llmtrack")
        for module in model.modules()
        for code in (
            type(module),
            *module._forward_hooks.values(),
            *module._forward_pre_hooks.values(),
            *([module.forward] if "forward" in vars(module) else ()),
        )
    )


def _package(code: Any) -> str:
    return str(getattr(code, "__module__", None)).partition(".")[0]


def _shape(model: Any) -> str:
    """Return a digest of a model's modules, tensor shapes and config."""
    modules = [(name, type(module).__module__, type(module).__qualname__) for name, module in model.named_modules()]
    tensors = [
        (name, type(tensor).__name__, str(tensor.dtype), str(tensor.device), list(tensor.shape))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    attention = getattr(model.config, "_attn_implementation", None)
    return digest([modules, tensors, attention, str(sorted(config.items()))])


def _machine(device: Any) -> list[Any]:
    """Return everything else that rounding may depend on."""
    import torch

    return [
        name_of(str(device)) if on_gpu(device) else cpu_model(),
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        {name: value for name, value in os.environ.items() if name.startswith(_KERNELS)},
        [installed_version(package) for package in _PACKAGES],
    ]


@cache
def _code() -> str:
    """Return a digest of llmtrack's code, so that answers are not kept across versions."""
    root, sha256 = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sha256.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return sha256.hexdigest()
