"""Reference implementations that an engine must agree with: token by token, without cache or padding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from llmtrack.engine import Engine

if TYPE_CHECKING:
    import torch


def greedy(engine: Engine, prompt: Sequence[int], new_tokens: int, banned: Collection[int]) -> tuple[int, ...]:
    """Generate greedily, never choosing banned tokens."""
    ids = list(prompt)
    for _ in range(new_tokens):
        logits = engine.next_token_logits(ids)[-1].clone()
        logits[sorted(banned)] = float("-inf")
        ids.append(int(logits.argmax()))
    return tuple(ids[len(prompt) :])


def negative_log_likelihood(engine: Engine, row: Sequence[int], counted: Sequence[bool]) -> float:
    """Return the summed negative log-likelihood of the counted tokens of a row, in nats and float64."""
    logits = engine.next_token_logits(row).double()
    return sum(
        float(_log_sum_exp(logits[place - 1]) - logits[place - 1, row[place]])
        for place in range(1, len(row))
        if counted[place]
    )


def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    largest = logits.max()
    return largest + (logits - largest).exp().sum().log()
