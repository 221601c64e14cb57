"""Whether a model scores what it generates: it is scored by passes without a cache, and generates by steps with one."""

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
from llmtrack.models.probed import Notes
from llmtrack.onnx.lengths import check_lengths

Steps = Callable[[torch.Tensor, torch.Tensor], "tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None"]

_PROBES = 3
"""Rows that must all differ: the experts that a token is sent to can hang on rounding."""
_LESS = 5
"""An engine is loaded more often than an export is made: it is checked as if its model were so much larger."""


def agreeing_passes(model: Any, pad_id: int, notes: Notes) -> Passes:
    """Return the passes of a model that says with its cache what it says without it, before a window and behind it.

    Of one that will be quantized ask beforehand: it is a matter of its code, which rounding leaves as it is.

    Args:
        model: a transformers model in `eval()`.
        pad_id: what pads hold.
        notes: what is known of its probes.

    Raises:
        ScenarioError: it says something else.
    """
    passes = Passes(model)
    notes.answer("agrees", model, bool, partial(_agrees, model, passes, pad_id))
    return passes


def _agrees(model: Any, passes: Passes, pad_id: int) -> bool:
    """Return True, or raise where a model says something else with its cache."""
    generate = partial(two_steps, model, pad_id)
    text = model.config.get_text_config()
    config = text.to_dict()
    rope = length_dependent_rope(config)
    # Behind the length at which angles change, keys in a cache keep the ones that they were turned by.
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
    """Return whether the logits of a prompt's last token and of the token after it depend on the cache."""
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
