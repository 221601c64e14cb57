"""Check that a model's cached generation agrees with the uncached passes it is scored by."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from llmtrack.engines.rounding import Noise, differ, noise_of
from llmtrack.engines.rows import length_dependent_rope
from llmtrack.engines.torch.eager import two_steps
from llmtrack.engines.torch.passes import Passes
from llmtrack.errors import ScenarioError
from llmtrack.models.probe_cache import Notes
from llmtrack.onnx.lengths import check_lengths

Steps = Callable[[torch.Tensor, torch.Tensor], "tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None"]

_PROBES = 3
"""All of these rows must differ, since rounding can change a token's experts."""
_LESS = 5
"""Engines are loaded more often than models are exported, so the check is scaled down by this factor."""


def agreeing_passes(model: Any, pad_id: int, notes: Notes) -> Passes:
    """Return the passes of a model that gives the same logits with and without cache, within and beyond a window.

    Check a model before quantizing it: agreement depends on its code, not on rounding.

    Args:
        model: a transformers model in `eval()`.
        pad_id: pad token id.
        notes: cached answers of its probes.

    Raises:
        ScenarioError: the logits differ.
    """
    passes = Passes(model)
    notes.answer("agrees", model, bool, partial(_agrees, model, passes, pad_id))
    return passes


def _agrees(model: Any, passes: Passes, pad_id: int) -> bool:
    """Return True, or raise if the model's logits depend on the cache."""
    generate = partial(two_steps, model, pad_id)
    text = model.config.get_text_config()
    config = text.to_dict()
    rope = length_dependent_rope(config)
    # Beyond the length at which rotary angles change, cached keys keep their original rotation.
    longest = min(passes.context_length or math.inf, rope[1] if rope else math.inf)
    noise = noise_of(model)
    parameters = sum(weight.numel() for weight in model.parameters())
    for length in check_lengths(config, _LESS * parameters):
        if 2 < length <= longest and all(
            _differs(passes, generate, length, text.vocab_size, seed, noise) for seed in range(_PROBES)
        ):
            raise ScenarioError(
                f"transformers gives other logits of {type(model).__name__} with its cache, by which it generates, than without "
                f"it, by which it is scored, at {length} tokens: use another version of transformers, another backend, or "
                "another model",
                kind="unsupported",
            )
    return True


def _differs(passes: Passes, generate: Steps, length: int, vocab_size: int, seed: int, noise: Noise | None) -> bool:
    """Return whether the logits of a prompt's last token or of the next depend on the cache."""
    prompt = torch.randint(vocab_size, (1, length - 1), generator=torch.Generator().manual_seed(seed))
    passes.begin()
    made = generate(prompt, torch.ones_like(prompt))
    if made is None:
        return False
    ids, steps = made

    def whole() -> torch.Tensor:
        passes.begin()
        return passes.logits(ids, torch.ones_like(ids))[0, -2:]

    def own(place: int) -> torch.Tensor:
        return whole()[place]

    return any(
        differ(expected, found[0], partial(own, place), noise)
        for place, (expected, found) in enumerate(zip(whole(), steps, strict=True))
    )
