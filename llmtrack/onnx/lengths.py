"""Derive from a config how a model depends on the sequence length, and compare a conversion at all such lengths.

Pure functions over a config as transformers 4 spells it: windows, chunks and kinds of rotary embedding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmtrack.models.attention import score_cap_name
from llmtrack.models.positions import context_length

STATIC_ROPE = frozenset({"default", "linear", "yarn", "llama3"})
"""Kinds with the same frequencies at every length."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Kinds whose frequencies depend on the sequence length."""

SHORT = 48
"""Sequence length at which every export is checked."""
BEYOND = 16
"""Tokens past a threshold at which an export is also checked."""
PARITY_BOUND = 1e-3
"""Maximum difference of logits from PyTorch's, as a share of the largest logit; rounding gives 1e-5."""
LEAST_AGREEMENT = 0.98
"""Minimum share of positions with the same most likely token."""
SEEDS = 0, 1
"""Seeds of the compared rows: the second is tried if the first differs, since rounding can route a token to another expert."""

PARITY_FACTS = ("parity_max_difference", "parity_max_share", "parity_top1_agreement")
"""Names of a `Parity` in manifests and tracked runs."""

_LONGEST = 2048
_PARAMETER_TOKENS = 10**11

_LENGTH = re.compile(r"window|chunk|context|position|length|seq|local")
_NO_LENGTH = re.compile(r"layer|pattern|dim|type|head|token|bucket|every|num|^(min|max)_length$")
_WINDOW = re.compile(r"window|chunk|local")
_EVERYWHERE = frozenset({"full_attention", "global", "attention"})
_LAYER_KINDS = ("layer_types", "attention_layers", "attention_types", "layers_block_type")


def rope_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of a config's rotary embedding; `default` if it names none."""
    scaling = config.get("rope_scaling") or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the attention windows and chunks of any layer that are shorter than the model's context."""
    if config.get("use_sliding_window") is False or _is_full(config):
        return ()
    return _within(config, {value for name, value in _lengths(config) if _WINDOW.search(name)})


def why_not_fused(config: Mapping[str, Any]) -> str:
    """Return why the fused operator cannot compute a config's attention; empty if it can."""
    if (kind := rope_kind(config)) not in STATIC_ROPE:
        return f"{kind} rotary positions"
    if lengths := windows(config):
        return f"a window of {lengths[0]} tokens"
    if config.get("alibi"):
        return "biases by distance"
    if not _is_full(config) and any(config.get(name) for name in _LAYER_KINDS):
        return "layers of several kinds"
    # A cap is visible in the graph, but not in scores too small for it to matter.
    return score_cap_name(config)


def thresholds(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the lengths within a model's context at which its computation may change."""
    return _within(config, {value for _, value in _lengths(config)})


def _within(config: Mapping[str, Any], lengths: Collection[int]) -> tuple[int, ...]:
    context = context_length(config)
    return tuple(sorted(length for length in lengths if context is None or length < context))


def check_lengths(config: Mapping[str, Any], parameters: int, longest: int | None = None) -> tuple[int, ...]:
    """Return the lengths at which a conversion is compared with PyTorch, shortest first.

    A short one, and each threshold within reach together with a length beyond it. Thresholds out of reach are judged by
    the config alone.

    Args:
        parameters: number of its parameters; the larger, the shorter the length that can be checked in seconds.
        longest: context of the converted model, which may be shorter than the model's.
    """
    context = context_length(config) or _LONGEST
    context = min(context, longest or context)
    reach = min(context, max(SHORT, min(_LONGEST, _PARAMETER_TOKENS // max(1, parameters))))
    beyond = {length for at in thresholds(config) for length in (at, min(at + BEYOND, context)) if 2 <= length <= reach}
    return tuple(sorted({min(SHORT, context)} | beyond))


@dataclass(frozen=True)
class Parity:
    """The difference of a conversion's logits from PyTorch's.

    Attributes:
        difference: the largest absolute difference.
        share: the same as a share of the largest logit.
        top1_agreement: share of positions with the same most likely token.
        length: tokens of the rows with the largest difference.
    """

    difference: float
    share: float
    top1_agreement: float
    length: int = SHORT

    @property
    def holds(self) -> bool:
        """Whether the difference is within rounding."""
        return self.share <= PARITY_BOUND and self.top1_agreement >= LEAST_AGREEMENT

    @property
    def facts(self) -> dict[str, float]:
        """What to track."""
        return dict(zip(PARITY_FACTS, (self.difference, self.share, self.top1_agreement), strict=True))

    def __str__(self) -> str:
        return (
            f"logits differ by up to {self.difference:.2g}, {self.share:.2g} of the largest, and the most likely token in "
            f"{1 - self.top1_agreement:.1%} of places, at {self.length} tokens"
        )


def at_every_length(
    config: Mapping[str, Any], parameters: int, compare: Callable[[int, int], Parity], longest: int | None = None
) -> Parity:
    """Compare a converted model at each of `check_lengths`; return the first failure, or the worst result.

    `compare` takes the length of the compared rows and the seed of their tokens.
    """
    results: list[Parity] = []
    # Shortest first: PyTorch's model keeps frequencies that grow with the length.
    for length in check_lengths(config, parameters, longest):
        for seed in SEEDS:
            result = compare(length, seed)
            if result.holds:
                break
        else:
            return result
        results.append(result)
    worst = max(results, key=lambda result: result.share)
    return replace(worst, top1_agreement=min(result.top1_agreement for result in results))


def _is_full(config: Mapping[str, Any]) -> bool:
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
