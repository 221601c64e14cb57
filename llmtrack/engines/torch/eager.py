"""Decode step by step through transformers' `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.tensors.padding import pad_rows


def greedy(model: Any, new_tokens: int, **settings: Any) -> GenerationConfig:
    """Return settings for greedy generation with the model's special ids, since `generate` logs missing ones."""
    ids = {name: getattr(model.generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return GenerationConfig(max_new_tokens=new_tokens, do_sample=False, num_beams=1, **{**ids, **settings})


class EagerDecoding:
    """Greedy decoding of a transformers model in `eval()` by its `generate`."""

    name = "eager"

    def __init__(self, model: Any, pad_id: int, eos_ids: frozenset[int]) -> None:
        self._model, self._pad_id, self._eos_ids = model, pad_id, eos_ids

    def prepare(self, request: GenerateRequest) -> float:
        """Return 0: nothing to prepare."""
        return 0.0

    def generate(self, request: GenerateRequest, stamps: Stamps) -> torch.Tensor:
        """See `Decoding.generate`."""
        ids, mask = pad_rows(request.prompt_ids, self._pad_id, request.padding_side, request.padded_length)
        config = greedy(
            self._model,
            request.max_new_tokens,
            min_new_tokens=request.max_new_tokens if request.ignore_eos else None,
            use_cache=request.use_cache,
            eos_token_id=sorted(self._eos_ids) or None,
            pad_token_id=self._pad_id,
        )
        output = self._model.generate(
            input_ids=ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([_Stamping(stamps)]),
        )
        stamps.wait()
        return output[:, ids.shape[1] :].cpu()


class _Stamping(StoppingCriteria):
    """Never stops: called once per step, after its tokens have been chosen."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    def __call__(self, input_ids: torch.Tensor, scores: Any, **unused: Any) -> torch.Tensor:
        self._stamps.step()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def two_steps(
    model: Any, pad_id: int, input_ids: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """Return the ids with a generated token, (rows, length + 1), and the logits of it and of the next, each (rows,
    vocabulary); None if the model cannot generate.
    """
    config = greedy(model, 2, min_new_tokens=2, use_cache=True, pad_token_id=pad_id)
    config.output_logits = config.return_dict_in_generate = True
    try:
        output: Any = model.generate(
            input_ids=input_ids.to(model.device),
            attention_mask=attention_mask.to(model.device),
            generation_config=config,
        )
    except Exception:  # reported when the model is asked to generate
        return None
    # `generate` returns float32 logits; restore the dtype that determines their rounding.
    return output.sequences[:, :-1], tuple(logits.to(model.dtype) for logits in output.logits)


def step_logits(
    model: Any, pad_id: int, input_ids: torch.Tensor, attention_mask: torch.Tensor
) -> Sequence[torch.Tensor]:
    """Return the logits of two generated tokens, each (rows, vocabulary); empty if the model cannot generate."""
    generated = two_steps(model, pad_id, input_ids, attention_mask)
    return generated[1] if generated else ()
