"""Whether a model scores what it generates: it is scored by passes without a cache, and generates by steps with one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from llmtrack.engines.passes import Passes
from llmtrack.engines.rows import differ, length_dependent_rope
from llmtrack.errors import ScenarioError
from llmtrack.onnx.lengths import check_lengths

Steps = Callable[[torch.Tensor, torch.Tensor], "tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None"]

_PROBES = 3
"""Rows that must all differ: the experts that a token is sent to can hang on rounding."""
_LESS = 5
"""An engine is loaded more often than an export is made: it is checked as if its model were so much larger."""


def refuse_disagreement(model: Any, passes: Passes, generate: Steps, at_least: float = 0.0) -> None:
    """Refuse a model that says something else with its cache than without it, before a window and behind it.

    Args:
        model: a transformers model.
        passes: its passes without a cache.
        generate: generates two tokens; see `llmtrack.engines.eager.two_steps`.
        at_least: share of the logits' standard deviation that a difference must have.

    Raises:
        ScenarioError: it does.
    """
    text = model.config.get_text_config()
    config = text.to_dict()
    rope = length_dependent_rope(config)
    # Behind the length at which angles change, keys in a cache keep the ones that they were turned by.
    longest = min(passes.context_length or math.inf, rope[1] if rope else math.inf)
    parameters = sum(weight.numel() for weight in model.parameters())
    for length in check_lengths(config, _LESS * parameters):
        if 2 < length <= longest and all(
            _differs(passes, generate, length, text.vocab_size, seed, at_least) for seed in range(_PROBES)
        ):
            raise ScenarioError(
                f"transformers gives other logits of {type(model).__name__} with its cache, by which it generates, than without "
                f"it, by which it is scored, at {length} tokens: use another version of transformers, another backend, or "
                "another model",
                "unsupported",
            )


def _differs(
    passes: Passes, generate: Steps, length: int, vocab_size: int, seed: int, at_least: float
) -> bool:
    """Return whether the logits of a prompt's last token and of the token after it depend on the cache."""
    prompt = torch.randint(vocab_size, (1, length - 1), generator=torch.Generator().manual_seed(seed))
    passes.begin()
    made = generate(prompt, torch.ones_like(prompt))
    if made is None:
        return False
    ids, steps = made
    passes.begin()
    whole = passes.logits(ids, torch.ones_like(ids))[0, -2:]
    return any(differ(expected, found[0], at_least) for expected, found in zip(whole, steps, strict=True))
