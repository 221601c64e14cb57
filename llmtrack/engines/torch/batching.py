"""Which rows of a transformers model may share a batch, tried on the float model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llmtrack.engines.rounding import noise_of
from llmtrack.engines.rows import Sharing, sharing_of, sharing_of_generation
from llmtrack.engines.torch.eager import step_logits
from llmtrack.engines.torch.passes import Passes
from llmtrack.engines.torch.step import Step
from llmtrack.models.probed import Notes


@dataclass(frozen=True)
class Batching:
    """Which rows of a model may share a batch.

    Attributes:
        scoring: which may while it scores.
        generating: which may while it generates.
    """

    scoring: Sharing
    generating: Sharing


def batching_of(model: Any, passes: Passes, step: Step, pad_id: int, notes: Notes) -> Batching:
    """Try which rows of a model may share a batch.

    Of one whose activations will be rounded ask beforehand, and keep the answer: pads and neighbours act through its code,
    positions and mask, which rounding does not change, but turns a difference of 1e-7 into one of several percent.

    Args:
        model: a transformers model in `eval()`.
        passes: its passes.
        step: what a decode step reads.
        pad_id: what pads hold.
        notes: what is known of its probes.
    """
    return notes.answer("batching", model, Batching, partial(_tried, model, passes, step, pad_id))


def _tried(model: Any, passes: Passes, step: Step, pad_id: int) -> Batching:
    scoring = sharing_of(model, passes.logits, recurrent=step.cache.constant > 0)
    vocab_size = int(model.config.get_text_config().vocab_size)
    generate = partial(step_logits, model, pad_id)
    generating = sharing_of_generation(scoring, generate, vocab_size, noise_of(model))
    return Batching(scoring, generating)
