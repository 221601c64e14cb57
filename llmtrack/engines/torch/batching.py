"""Probe which rows of a transformers model may share a batch, on the float model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llmtrack.engines.rounding import noise_of
from llmtrack.engines.rows import Sharing, sharing_of, sharing_of_generation
from llmtrack.engines.torch.eager import step_logits
from llmtrack.engines.torch.passes import Passes
from llmtrack.engines.torch.step import Step
from llmtrack.models.probe_cache import Notes


@dataclass(frozen=True)
class Batching:
    """Which rows of a model may share a batch.

    Attributes:
        scoring: rule while scoring.
        generating: rule while generating.
    """

    scoring: Sharing
    generating: Sharing


def batching_of(model: Any, passes: Passes, step: Step, pad_id: int, notes: Notes) -> Batching:
    """Probe which rows of a model may share a batch.

    Probe a model before quantizing its activations: the effect of pads and other rows depends on its code, positions
    and mask, but quantization amplifies a difference of 1e-7 to several percent.

    Args:
        model: a transformers model in `eval()`.
        step: data read by a decode step.
        pad_id: pad token id.
        notes: cached answers of its probes.
    """
    return notes.answer("batching", model, Batching, partial(_tried, model, passes, step, pad_id))


def _tried(model: Any, passes: Passes, step: Step, pad_id: int) -> Batching:
    scoring = sharing_of(model, passes.logits, recurrent=step.cache.constant > 0)
    vocab_size = int(model.config.get_text_config().vocab_size)
    generate = partial(step_logits, model, pad_id)
    generating = sharing_of_generation(scoring, generate, vocab_size, noise_of(model))
    return Batching(scoring, generating)
