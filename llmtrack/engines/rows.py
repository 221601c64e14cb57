"""Determine which rows may share a batch: in most models all, in some only rows of equal length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from llmtrack.engine import GenerateRequest
from llmtrack.engines.rounding import Noise, differ, noise_of
from llmtrack.errors import ScenarioError
from llmtrack.models.positions import depends_on_length, rotary_settings

_PROBE_TOKENS, _PROBE_PADS = 6, 3
_STRIDES = (1, 7, 31)
"""Id strides of the probe rows: several, since rounding may change one row (the choice of an expert) but not all."""

_RECACHING = frozenset({"phi3", "phimoe", "phi4_multimodal"})
"""Families in which transformers recomputes the cache where the longer set of rotary angles starts to apply."""

Inputs = tuple[torch.Tensor, torch.Tensor]
Generate = Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Sharing:
    """Which rows may share a batch without changing their output.

    Attributes:
        unequal_up_to: length up to which rows of unequal lengths may; beyond it, only rows of equal length.
        reason: why not all rows may; empty if all may.
        apart: whether no rows may.
    """

    unequal_up_to: float = math.inf
    reason: str = ""
    apart: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for every run."""
        if not self.reason:
            return ()
        if self.apart:
            return (f"{self.reason}; its perplexity is computed one row at a time, without pads",)
        long = f" of more than {self.unequal_up_to:,.0f} tokens" if self.unequal_up_to else ""
        return (f"{self.reason}: rows{long} are computed alone, or beside rows of the same length",)

    def classes(self, lengths: Sequence[int]) -> list[list[int]]:
        """Group row indices by the tokens the model reads, so that each group may share a batch."""
        if self.apart:
            return [[index] for index in range(len(lengths))]
        groups: dict[float, list[int]] = {}
        for index, length in enumerate(lengths):
            groups.setdefault(0 if length <= self.unequal_up_to else length, []).append(index)
        return list(groups.values())

    def check(self, request: GenerateRequest) -> None:
        """Reject a batch whose pads would change the generated text.

        Raises:
            ScenarioError: rows with pads may not be this long; or there are several rows, and none may share.
        """
        lengths = [len(row) for row in request.prompt_ids]
        if self.apart and len(lengths) > 1:
            raise ScenarioError(f"{self.reason}: use batch_size=1", kind="unsupported")
        padded = request.padded_length
        if min(lengths) < padded and padded + request.max_new_tokens > self.unequal_up_to:
            raise ScenarioError(
                f"{self.reason}, so rows of unequal lengths cannot be generated from in one batch: use batch_size=1 and "
                "pad_to_multiple=1, or prompts of one length (prompt_tokens)",
                kind="unsupported",
            )


MIXED = Sharing(
    0,
    "activation ranges are shared by the whole batch: the output of a row can depend on other rows and on pads",
    apart=True,
)
"""For a model with one activation range for all rows: rows are scored separately."""


def sharing_of(model: Any, forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], recurrent: bool) -> Sharing:
    """Determine which rows of a transformers model may share a batch.

    Args:
        forward: maps ids and attention mask, both (rows, length), to logits.
        recurrent: whether the model has a constant-size state.
    """
    if recurrent:
        return Sharing(0, "pads pass through the recurrent state of this model")
    noise, vocab_size = noise_of(model), model.config.get_text_config().vocab_size
    if all(changed_by_pads(forward, vocab_size, noise, stride) for stride in _STRIDES):
        return Sharing(0, "left pads change what this model says")
    return sharing_by_rope(model.config.get_text_config().to_dict())


def sharing_of_generation(sharing: Sharing, generate: Generate, vocab_size: int, noise: Noise | None = None) -> Sharing:
    """Determine which rows may share a batch while generating, which models may implement differently.

    Args:
        sharing: the rule for scoring, which is not relaxed here; if rows of unequal lengths may not share, rows of
            equal length are probed.
        generate: maps ids and attention mask, both (rows, length), to the logits of each step, (rows, vocabulary).
        noise: perturbation of last bits; None to decide by one row and the dtype's tolerance.
    """
    result = sharing
    for stride in _STRIDES if noise else _STRIDES[:1]:
        result = _sharing_of_row(sharing, generate, _probe(vocab_size, stride), noise)
        if result == sharing:
            break
    return result


def _sharing_of_row(sharing: Sharing, generate: Generate, probe: tuple[Inputs, Inputs], noise: Noise | None) -> Sharing:
    (ids, real), padded = probe
    if not sharing.unequal_up_to:
        twice = ids.expand(2, -1), real.expand(2, -1)
        if _generates_differently(generate, (ids, real), twice, noise):
            return Sharing(0, "a row beside it changes what this model generates", apart=True)
    if not sharing.reason and _generates_differently(generate, (ids, real), padded, noise):
        return Sharing(0, "left pads change what this model generates")
    return sharing


def _generates_differently(generate: Generate, first: Inputs, second: Inputs, noise: Noise | None) -> bool:
    """Return whether the logits of any step differ in the first row, up to where rounding chose another token."""

    def recompute(step: int) -> torch.Tensor:
        return generate(*first)[step][0]

    for step, (alone, changed) in enumerate(zip(generate(*first), generate(*second), strict=False)):
        if differ(alone[0], changed[0], partial(recompute, step), noise):
            return True
        if alone[0].argmax() != changed[0].argmax():  # the continuations differ from here on
            break
    return False


def sharing_by_rope(config: Mapping[str, Any]) -> Sharing:
    """Determine from a model's config whether its rotary angles let unequal rows share a batch."""
    rope = length_dependent_rope(config)
    if rope is None:
        return Sharing()
    kind, tokens = rope
    return Sharing(tokens, f"the rotary angles of this model ({kind}) depend on the longest row of a batch")


def recache_length(config: Mapping[str, Any]) -> int | None:
    """Return the length at which transformers recomputes a model's cache while generating, or None.

    In other families than these, keys rotated by the shorter set of angles remain.
    """
    original = config.get("original_max_position_embeddings")
    if config.get("model_type") not in _RECACHING or length_dependent_rope(config) is None or not original:
        return None
    return int(original) + 1


def length_dependent_rope(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the kind of a length-dependent rotary embedding, and the length up to which it is constant; None if it is
    constant.

    Of several lengths the shortest: beyond it, rows of equal length are always right.
    """
    for rope in rotary_settings(config):
        kind = str(rope.get("rope_type") or rope.get("type") or "")
        if depends_on_length(kind):
            lengths = (
                rope.get("original_max_position_embeddings"),
                config.get("original_max_position_embeddings"),
                config.get("max_position_embeddings"),
            )
            return kind, min((length for length in lengths if length), default=0)
    return None


def changed_by_pads(
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    vocab_size: int,
    noise: Noise | None = None,
    stride: int = 1,
) -> bool:
    """Return whether left pads before a row change the logits of its last token.

    They do if a model counts positions itself and treats pads as tokens.

    Args:
        forward: maps ids and attention mask, both (rows, length), to logits.
        noise: perturbation of last bits.
        stride: of the row's ids.
    """
    (ids, real), padded = _probe(vocab_size, stride)
    alone, after_pads = (forward(*inputs)[0, -1] for inputs in ((ids, real), padded))
    return differ(alone, after_pads, lambda: forward(ids, real)[0, -1], noise)


def _probe(vocab_size: int, stride: int) -> tuple[Inputs, Inputs]:
    """Return ids and attention mask of a row, and of the same row after pads."""
    ids = torch.arange(1, 1 + _PROBE_TOKENS)[None] * stride % vocab_size
    real = torch.ones_like(ids)
    padded_ids, padded_mask = (torch.nn.functional.pad(tensor, (_PROBE_PADS, 0)) for tensor in (ids, real))
    return (ids, real), (padded_ids, padded_mask)
