"""The training loop: learning rate, loss, backpropagation, optimizer step; periodic evaluation and checkpoints.

It is independent of files, corpora and trackers: input, callbacks, stop condition and clock are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from llmtrack.errors import ScenarioError
from llmtrack.measure.timing import Clock
from llmtrack.train.data import IGNORED, TrainingBatch

BETAS = (0.9, 0.95)
"""Decay rates of AdamW's moments."""


FLOOR_SHARE = 0.1
"""Learning rate of the last step, as a share of the peak."""


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop; see `llmtrack.spec.task.TrainTask`."""

    steps: int
    learning_rate: float
    warmup_steps: int = 0
    accumulate: int = 1
    clip_norm: float = 1.0
    eval_every: int = 50
    patience: int = 0
    autocast: bool = False


@dataclass
class State:
    """Progress of the training. With weights, optimizer and random state, it is all that a checkpoint holds.

    Attributes:
        step: completed steps.
        evaluated: step of the last evaluation, -1 before the first.
        loss: validation loss of the last evaluation.
        best_step: step of the lowest validation loss, from 1; 0 before the first evaluation after a step.
        worse: consecutive evaluations without improvement.
        tokens: targets trained on.
        seconds: of all steps.
    """

    step: int = 0
    evaluated: int = -1
    loss: float = math.inf
    best_step: int = 0
    best_loss: float = math.inf
    worse: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """The result of a step, numbered from 1.

    Attributes:
        loss: token-weighted mean cross-entropy of its batches in nats, before the update.
        grad_norm: before clipping.
        tokens: targets.
        seconds: including loading its batches.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    seconds: float


def _nothing(_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the loop.

    Attributes:
        evaluate: returns the validation loss in nats.
        save: called after each evaluation except the one before the first step, and on a stop.
        on_evaluated: called after each evaluation, before `save`.
        should_stop: called before each step.
    """

    evaluate: Callable[[], float]
    save: Callable[[State], None] = _nothing
    on_step: Callable[[StepResult], None] = _nothing
    on_evaluated: Callable[[State], None] = _nothing
    should_stop: Callable[[], bool] = field(default=lambda: False)


def make_optimizer(model: torch.nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Create AdamW with weight decay on matrices only, not on norms and biases; fused into one kernel on a GPU."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=weights[0].device.type == "cuda")


Nll = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps a model, input ids and target ids, both (rows, length), to the summed negative log-likelihood."""


def batch_nll(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the negative log-likelihood of a batch in nats; see `sum_cross_entropy`."""
    return sum_cross_entropy(model(input_ids=inputs, use_cache=False).logits, targets)


def compiled_nll(mode: str) -> Nll:
    """Compile `batch_nll` with forward and backward pass, by `default` or `max-autotune`; `none`: do not compile."""
    if mode == "none":
        return batch_nll
    compiled: Nll = torch.compile(batch_nll, dynamic=False, options={"max_autotune": mode == "max-autotune"})
    return compiled


def fit(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[TrainingBatch],
    settings: LoopSettings,
    state: State,
    hooks: Hooks,
    clock: Clock,
    nll: Nll = batch_nll,
) -> str:
    """Train until all steps are done, the validation loss stops improving, or a stop is requested.

    Evaluates before the first step, every `eval_every` steps and after the last.

    Args:
        model: a causal language model of transformers, on its device.
        optimizer: of its parameters.
        batches: `settings.accumulate` of them make a step.
        state: where to resume; modified in place.
        clock: in seconds.
        nll: loss of a batch, including the forward pass.

    Returns:
        `finished`, `stopped_early` (no improvement for `patience` evaluations) or `interrupted`.

    Raises:
        ScenarioError: the loss or the gradient is not finite; the weights are those before that step.
    """
    device = next(model.parameters()).device
    model.train()
    while True:
        due = state.step % settings.eval_every == 0 or state.step == settings.steps
        if due and state.evaluated < state.step:
            _evaluate(model, state, hooks)
        if settings.patience and state.worse >= settings.patience:
            return "stopped_early"
        if state.step == settings.steps:
            return "finished"
        if hooks.should_stop():
            # Already saved at an evaluation.
            if state.evaluated < state.step or not state.step:
                hooks.save(state)
            return "interrupted"
        started = clock()
        rate = learning_rate(state.step + 1, settings.steps, settings.learning_rate, settings.warmup_steps)
        parts = [next(batches) for _ in range(settings.accumulate)]
        autocast = autocast_for(device, settings.autocast)
        loss, norm = train_step(model, optimizer, parts, rate, settings.clip_norm, autocast, nll)
        seconds = clock() - started
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ScenarioError(_not_finite(state, loss, norm, rate), kind="non_finite")
        state.step += 1
        state.tokens += (tokens := sum(part.tokens for part in parts))
        state.seconds += seconds
        hooks.on_step(StepResult(state.step, loss, rate, norm, tokens, seconds))


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Compute the learning rate of a step, from 1: linear warm-up to the peak, then cosine decay to a tenth of it.

    The peak is reached at step `warmup`, or at step 1 without warm-up.

    Source: I. Loshchilov, F. Hutter, SGDR (2017), with linear warm-up as in A. Vaswani et al. (2017).
    """
    if step < warmup:
        return peak * step / warmup
    start = max(warmup, 1)
    if steps <= start:
        return peak
    progress = (step - start) / (steps - start)
    return peak * (FLOOR_SHARE + (1 - FLOOR_SHARE) * (1 + math.cos(math.pi * progress)) / 2)


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[TrainingBatch],
    rate: float,
    clip_norm: float,
    autocast: Callable[[], Any] = nullcontext,
    nll: Nll = batch_nll,
) -> tuple[float, float]:
    """Update the weights once, unless loss or gradient are not finite; return the loss and the gradient's norm.

    The gradients of all `parts` are accumulated, and clipped to `clip_norm`; 0: not clipped.
    """
    device = next(model.parameters()).device
    tokens = sum(part.tokens for part in parts)
    loss = torch.zeros((), device=device)
    for part in parts:
        with autocast():
            total = nll(model, part.inputs.to(device), part.targets.to(device))
        # Normalize by the tokens of the whole step: a mean of means would overweight the tokens of a short batch.
        (total / tokens).backward()
        loss += total.detach() / tokens
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(weights, clip_norm or math.inf)
    values: list[float] = torch.stack([loss.float(), norm.to(device).float()]).tolist()
    if all(map(math.isfinite, values)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return values[0], values[1]


def sum_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the negative log-likelihood of the targets in nats, in float32.

    Takes logits, not probabilities: `cross_entropy` includes a softmax that does not overflow.

    Args:
        logits: (rows, length, vocabulary), of any float dtype.
        targets: (rows, length) token ids, `IGNORED` where they do not count.
    """
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def autocast_for(device: torch.device, enabled: bool) -> Callable[[], Any]:
    """Return a factory of forward-pass contexts: bfloat16 autocast over float32 weights, or no-op."""
    if not enabled:
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def _evaluate(model: Any, state: State, hooks: Hooks) -> None:
    model.eval()
    try:
        loss = hooks.evaluate()
    finally:
        model.train()
    state.evaluated, state.loss = state.step, loss
    if state.step and loss < state.best_loss:
        state.best_step, state.best_loss, state.worse = state.step, loss, 0
    elif state.step:
        state.worse += 1
    hooks.on_evaluated(state)
    if state.step:
        hooks.save(state)


def _not_finite(state: State, loss: float, norm: float, rate: float) -> str:
    value = f"loss ({loss})" if not math.isfinite(loss) else f"norm of the gradient ({norm})"
    return (
        f"the {value} of step {state.step + 1} is not finite, at learning rate {rate:.2g}: use a smaller learning rate, "
        "more warmup_steps, a smaller clip_norm, or dtype=float32"
    )
