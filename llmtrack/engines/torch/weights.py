"""Storage types and sizes of a model's weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from llmtrack.devices import emulates_bfloat16
from llmtrack.engine import CacheGrowth
from llmtrack.engines.torch.module_state import ModuleState
from llmtrack.engines.torch.step import Step, observe_step, stored_tensors
from llmtrack.errors import in_words
from llmtrack.models.probe_cache import Notes


def stored_dtypes(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of weights per storage dtype, the most frequent first: parameters and saved buffers."""
    counts: Counter[str] = Counter()
    saved = model.state_dict(keep_vars=True).values()
    for tensor in {id(each): each for each in saved if isinstance(each, torch.Tensor)}.values():
        # Integer buffers are position tables.
        if isinstance(tensor, torch.nn.Parameter) or tensor.is_floating_point():
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(counts.most_common())


def model_size_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a checkpoint; tables that the code can recreate (masks, rotary angles) do not count."""
    return _bytes(each for each in model.state_dict().values() if isinstance(each, torch.Tensor))


def hidden_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of a token between two layers; 0 if unknown."""
    width = getattr(model.config.get_text_config(), "hidden_size", 0)
    return int(width) * min(parameter.element_size() for parameter in model.parameters())


def step_of(model: Any, modules: ModuleState, notes: Notes) -> tuple[Step, tuple[str, ...]]:
    """Return the bytes that a decode step reads, and a warning if it is only an upper bound.

    Args:
        model: a transformers model in `eval()` and not run before.
        modules: state kept by its modules; if there is any, the step is always observed anew.
        notes: cached answers of its probes.
    """
    try:
        look = partial(observe_step, model, modules)
        return notes.answer("step", model, Step, look, lambda _: not modules.hold_state), ()
    except Exception as error:
        reason = in_words(error)[:200]
        warning = f"no decode step could be tried ({reason}): its bytes are those of all weights, without a cache"
        return Step(_bytes(model.parameters()), CacheGrowth(0)), (warning,)


def emulation_warning(dtype_name: str, device: torch.device) -> tuple[str, ...]:
    """Warn if the CPU emulates a dtype."""
    if dtype_name == "bfloat16" and emulates_bfloat16(device.type):
        return ("this CPU has no bfloat16 instructions: PyTorch emulates them, so the speed is not representative",)
    return ()


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; shared storage, as of tied weights, counts once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in stored_tensors(tensors)}.values())
