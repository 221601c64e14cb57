"""What a config says of how attention depends on length, and the comparison of what was made of a model at all such lengths.

Pure functions over a config's content as transformers 4 spells it: windows, chunks and kinds of rotary embedding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtrack.models.attention import score_cap
from llmtrack.models.context import context_length

STATIC_ROPE = frozenset({"default", "linear", "yarn", "llama3"})
"""Kinds whose frequencies are the same at every length."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Kinds whose frequencies depend on the length of what is read."""

SHORT = 48
"""Tokens at which every export is checked."""
BEYOND = 16
"""Tokens past a threshold at which an export is checked, too."""
PARITY_BOUND = 1e-3
"""Difference of logits from PyTorch's that is an error, as a share of the largest logit; rounding gives 1e-5."""
LEAST_AGREEMENT = 0.98
"""Share of positions at which the most likely token must be the same."""
SEEDS = 0, 1
"""Of the rows that are compared: those of another are tried where the first differ, since rounding can send a token to another expert."""

_LONGEST = 2048
_PARAMETER_TOKENS = 10**11

_LENGTH = re.compile(r"window|chunk|context|position|length|seq|local")
_NO_LENGTH = re.compile(r"layer|pattern|dim|type|head|token|bucket|every|num|^(min|max)_length$")
_WINDOW = re.compile(r"window|chunk|local")
_EVERYWHERE = frozenset({"full_attention", "global", "attention"})
_LAYER_KINDS = ("layer_types", "attention_layers", "attention_types", "layers_block_type")


def rope_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of a config's rotary embedding; `default` where it names none."""
    scaling = config.get("rope_scaling") or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the windows and chunks that keep some layer from what lies further back, within the model's context."""
    if config.get("use_sliding_window") is False or _is_full(config):
        return ()
    return _within(config, {value for name, value in _lengths(config) if _WINDOW.search(name)})


def why_not_fused(config: Mapping[str, Any]) -> str:
    """Return what of a config's attention one fused operator cannot say; empty if nothing."""
    if (kind := rope_kind(config)) not in STATIC_ROPE:
        return f"{kind} rotary positions"
    if found := windows(config):
        return f"a window of {found[0]} tokens"
    if config.get("alibi"):
        return "biases by distance"
    if not _is_full(config) and any(config.get(name) for name in _LAYER_KINDS):
        return "layers of several kinds"
    # The operator has no such thing; a graph shows it, and scores too small for it to matter do not.
    return score_cap(config)


def thresholds(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the lengths within a model's context at which it may begin to compute in another way."""
    return _within(config, {value for _, value in _lengths(config)})


def _within(config: Mapping[str, Any], lengths: Collection[int]) -> tuple[int, ...]:
    context = context_length(config)
    return tuple(sorted(length for length in lengths if context is None or length < context))


def check_lengths(config: Mapping[str, Any], parameters: int, longest: int | None = None) -> tuple[int, ...]:
    """Return the lengths at which an export is compared with PyTorch, shortest first.

    They are a short one and, of every threshold that is within reach, the threshold itself and a length beyond it.
    What is out of reach is decided by the config alone.

    Args:
        config: the model's.
        parameters: of the model; the larger, the shorter what can be checked in seconds.
        longest: context of what was made of it, which may be shorter than the model's.
    """
    context = context_length(config) or _LONGEST
    context = min(context, longest or context)
    reach = min(context, max(SHORT, min(_LONGEST, _PARAMETER_TOKENS // max(1, parameters))))
    found = {min(SHORT, context)}
    for threshold in thresholds(config):
        for length in (threshold, min(threshold + BEYOND, context)):
            if 2 <= length <= reach:
                found.add(length)
    return tuple(sorted(found))


@dataclass(frozen=True)
class Parity:
    """How far an export's logits are from PyTorch's.

    Attributes:
        difference: the largest absolute one.
        share: the same as a share of the largest logit.
        top1_agreement: share of positions at which the most likely token is the same.
        length: tokens of the rows at which it was worst.
    """

    difference: float
    share: float
    top1_agreement: float
    length: int = SHORT

    @property
    def holds(self) -> bool:
        """Whether the difference is one of rounding."""
        return self.share <= PARITY_BOUND and self.top1_agreement >= LEAST_AGREEMENT

    def __str__(self) -> str:
        return (
            f"logits differ by up to {self.difference:.2g}, {self.share:.2g} of the largest, and the most likely token in "
            f"{1 - self.top1_agreement:.1%} of places, at {self.length} tokens"
        )


def at_every_length(
    config: Mapping[str, Any], parameters: int, compare: Callable[[int, int], Parity], longest: int | None = None
) -> Parity:
    """Compare what was made of a model with it at each of `check_lengths`; return the first that does not hold, or the worst.

    Args:
        config: the model's.
        parameters: of the model.
        compare: compares rows of so many tokens, drawn by a seed, and tokens that are decoded there.
        longest: context of what was made of it.
    """
    found: list[Parity] = []
    # Shortest first: frequencies that grow with the length are kept by PyTorch's model.
    for length in check_lengths(config, parameters, longest):
        for seed in SEEDS:
            at_length = compare(length, seed)
            if at_length.holds:
                break
        else:
            return at_length
        found.append(at_length)
    worst = max(found, key=lambda each: each.share)
    return replace(worst, top1_agreement=min(each.top1_agreement for each in found))


def _is_full(config: Mapping[str, Any]) -> bool:
    """Return whether a config lists the kinds of its layers, and all of them look at everything before."""
    kinds = set(config.get("layer_types") or ())
    return bool(kinds) and kinds <= _EVERYWHERE


def _lengths(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _lengths(value)
        elif isinstance(name, str) and _LENGTH.search(name) and not _NO_LENGTH.search(name) and _is_length(value):
            yield name, value


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1
