"""Explain one window step by step: tokens, targets, logits, softmax, and the loss by hand next to PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from llmtrack.train.data import WindowDataset, collate
from llmtrack.train.loop import sum_cross_entropy

MOST_ROWS = 12
MOST_LOGITS = 4_000_000  # plain Python takes a few seconds for these


def softmax(logits: Sequence[float]) -> list[float]:
    """Compute probabilities from logits; the largest is subtracted first, so that exp does not overflow.

    >>> [round(p, 3) for p in softmax([2.0, 1.0, 0.1])]
    [0.659, 0.242, 0.099]
    """
    largest = max(logits)
    powers = [math.exp(logit - largest) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


def loss_by_hand(logits: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    """Average -log p over positions, p being the softmax probability of each target.

    >>> round(loss_by_hand([[2.0, 1.0, 0.1]], [1]), 4)
    1.417
    """
    probabilities = [softmax(row)[target] for row, target in zip(logits, targets, strict=True)]
    return math.fsum(-math.log(p) for p in probabilities) / len(targets)


@torch.no_grad()
def explain_window(model: Any, dataset: WindowDataset, decode: Callable[[Sequence[int]], str]) -> str:
    """Explain, as text, how the loss of the first window is computed by a causal language model in `eval()`."""
    input_ids, target_ids = dataset[0]
    most = max(1, MOST_LOGITS // model.config.vocab_size)
    batch = collate([(input_ids[:most], target_ids[:most])])
    logits = model(input_ids=batch.inputs.to(model.device), use_cache=False).logits[0].double().cpu()
    inputs, targets = batch.inputs[0].tolist(), batch.targets[0].tolist()
    rows = logits.tolist()
    by_torch = float(sum_cross_entropy(logits[None], batch.targets)) / batch.tokens
    lines = [
        f"window 0 of {len(dataset)}: {len(inputs)} of its {len(input_ids)} positions; "
        "the target at each is the token after it",
        f"inputs:  {_abbreviated(inputs)}",
        f"targets: {_abbreviated(targets)}",
        f"logits:  {tuple(logits.shape)} (positions, vocabulary); no softmax before the loss",
        f"{'input':>16}  {'target':<16} {'p(target)':>10} {'-log p':>8}",
    ]
    for token, target, row in list(zip(inputs, targets, rows, strict=True))[:MOST_ROWS]:
        p = softmax(row)[target]
        lines.append(f"{_shown(decode, token):>16}  {_shown(decode, target):<16} {p:>10.6f} {-math.log(p):>8.4f}")
    if len(inputs) > MOST_ROWS:
        lines.append(f"{'...':>16}  and {len(inputs) - MOST_ROWS} more positions")
    lines += [
        f"loss by hand (mean of -log p):  {loss_by_hand(rows, targets):.6f} nats",
        f"loss by torch (cross_entropy):  {by_torch:.6f} nats",
        f"a uniform guess would have ln({logits.shape[-1]}) = {math.log(logits.shape[-1]):.4f} nats",
    ]
    return "\n".join(lines)


def _abbreviated(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:MOST_ROWS]))
    return f"[{shown}{', ...' if len(ids) > MOST_ROWS else ''}]"


def _shown(decode: Callable[[Sequence[int]], str], token: int) -> str:
    return repr(decode([token]))[:16]
