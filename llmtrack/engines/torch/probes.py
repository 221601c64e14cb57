"""Probe a float model on loading: whether its cache agrees with scoring, and which rows may share a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from llmtrack.engines.rounding import Noise, differ, noise_of
from llmtrack.engines.rows import Sharing, length_dependent_rope, sharing_of, sharing_of_generation
from llmtrack.engines.torch.eager import step_logits, two_steps
from llmtrack.engines.torch.scoring import Passes
from llmtrack.engines.torch.step import Step
from llmtrack.errors import ScenarioError
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.onnx.lengths import check_lengths

Steps = Callable[[torch.Tensor, torch.Tensor], "tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None"]

_PROBES = 3
"""Number of rows that must all differ, since rounding can change a token's experts."""

_SCALE = 5
"""Engines are loaded more often than models are exported, so the check is scaled down by this factor."""


@dataclass(frozen=True)
class Batching:
    """Which rows of a model may share a batch while scoring, and while generating."""

    scoring: Sharing
    generating: Sharing


def agreeing_passes(model: Any, pad_id: int, probe_cache: ProbeCache) -> Passes:
    """Return the passes of a transformers model, if it gives the same logits with and without cache.

    Within and beyond a window. Check a model before quantizing it: agreement depends on its code, not on rounding.

    Raises:
        ScenarioError: the logits differ.
    """
    passes = Passes(model)
    probe_cache.answer("agrees", model, bool, partial(_agrees, model, passes, pad_id))
    return passes


def batching_of(model: Any, passes: Passes, step: Step, pad_id: int, probe_cache: ProbeCache) -> Batching:
    """Probe which rows of a transformers model may share a batch.

    Probe a model before quantizing its activations: the effect of pads and other rows depends on its code, positions
    and mask, but quantization amplifies a difference of 1e-7 to several percent.
    """
    return probe_cache.answer("batching", model, Batching, partial(_probe_batching, model, passes, step, pad_id))


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
    for length in check_lengths(config, _SCALE * parameters):
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
    generated = generate(prompt, torch.ones_like(prompt))
    if generated is None:
        return False
    ids, steps = generated

    def uncached() -> torch.Tensor:
        passes.begin()
        return passes.logits(ids, torch.ones_like(ids))[0, -2:]

    def recompute(index: int) -> torch.Tensor:
        return uncached()[index]

    return any(
        differ(expected, cached[0], partial(recompute, index), noise)
        for index, (expected, cached) in enumerate(zip(uncached(), steps, strict=True))
    )


def _probe_batching(model: Any, passes: Passes, step: Step, pad_id: int) -> Batching:
    scoring = sharing_of(model, passes.logits, recurrent=step.cache.constant > 0)
    vocab_size = int(model.config.get_text_config().vocab_size)
    generate = partial(step_logits, model, pad_id)
    generating = sharing_of_generation(scoring, generate, vocab_size, noise_of(model))
    return Batching(scoring, generating)
