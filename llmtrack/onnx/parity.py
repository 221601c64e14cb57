"""Compare an exported graph with PyTorch, at every length where a model's computation changes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmtrack.errors import ScenarioError
from llmtrack.models.load import LoadedModel
from llmtrack.onnx.lengths import (
    LENGTH_DEPENDENT_ROPE,
    PARITY_BOUND,
    SEEDS,
    SHORT,
    Parity,
    at_every_length,
    check_lengths,
    rope_kind,
)
from llmtrack.onnx.session import OnnxDecoder
from llmtrack.tensors.padding import pad_rows

TIE = PARITY_BOUND / 10
"""Margin of PyTorch's most likely token, as a share of the largest logit, below which summation order decides it."""

# Tokens by which each row is shorter than the one before.
_SHORTER = 5
# Number of last positions compared: the logits of all positions of a long row would take gigabytes.
_LAST = 64


def parity(loaded: LoadedModel, decoder: OnnxDecoder, pads: bool = True) -> Parity:
    """Compare logits with PyTorch's at each of `check_lengths`; return the first failure, or the worst result.

    Rows have unequal lengths if `pads` is set.

    Raises:
        ScenarioError: PyTorch's logits are not finite; of kind `non_finite`.
    """
    config = loaded.model.config.get_text_config().to_dict()
    return at_every_length(
        config,
        _parameters(loaded.model),
        lambda length, seed: _parity(loaded, decoder, config, length, pads, seed),
    )


def agreement(logits: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Compare the most likely tokens of (..., vocabulary) logits, up to ties within rounding of the expected ones."""
    chosen = np.take_along_axis(expected, logits.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    same: NDArray[np.bool_] = expected.max(axis=-1) - chosen <= TIE * largest(expected)
    return same


def largest(logits: NDArray[Any]) -> float:
    """Return the largest magnitude of the finite logits; masked entries of a vocabulary may be -inf."""
    return float(np.abs(logits[np.isfinite(logits)]).max())


def refuse_non_finite(loaded: LoadedModel) -> None:
    """Refuse a model with non-finite logits before the export, which takes long.

    Raises:
        ScenarioError: they are not finite; of kind `non_finite`.
    """
    config = loaded.model.config.get_text_config().to_dict()
    length = check_lengths(config, _parameters(loaded.model))[0]
    _expected(loaded, *_batch(config, length, True, SEEDS[0]))


def _parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _batch(config: dict[str, Any], length: int, pads: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw ids and attention mask of rows of random tokens, the longest of the given length."""
    random = np.random.default_rng(seed)
    sizes = [size for size in (length, length - _SHORTER, length - 2 * _SHORTER) if size > 1]
    sizes = sizes if length <= SHORT else sizes[:2]
    sizes = sizes if pads else [length] * len(sizes)
    return pad_rows([random.integers(0, int(config["vocab_size"]), size).tolist() for size in sizes], 0, "left")


def _expected(loaded: LoadedModel, ids: torch.Tensor, mask: torch.Tensor) -> NDArray[np.float32]:
    """Compute PyTorch's logits of the last positions: (rows, positions, vocabulary)."""
    with torch.inference_mode():
        output = _forward(loaded.model, ids, mask, logits_to_keep=_LAST)
    expected: NDArray[np.float32] = output.logits[:, -_LAST:].numpy()
    real = mask.numpy().astype(bool)[:, -_LAST:]
    if not np.isfinite(expected[real].max(axis=-1)).all():  # masked entries of a vocabulary may be -inf
        raise ScenarioError(
            f"the logits of {loaded.model_id} are not finite in float32: look for damaged weights",
            kind="non_finite",
        )
    return expected


def _parity(
    loaded: LoadedModel, decoder: OnnxDecoder, config: dict[str, Any], length: int, pads: bool, seed: int
) -> Parity:
    """Compare logits of a batch, optionally left-padded, and of a last token decoded from the cache."""
    ids, mask = _batch(config, length, pads, seed)
    # Before the longer pass, which changes frequencies that depend on the length.
    with torch.inference_mode():
        last_decoded = decoded(loaded.model, ids, mask) if rope_kind(config) in LENGTH_DEPENDENT_ROPE else None
    expected = _expected(loaded, ids, mask)
    expected_last = expected[:, -1] if last_decoded is None else last_decoded
    real = mask.numpy().astype(bool)[:, -_LAST:]
    logits, _ = decoder.run(ids.numpy(), mask.numpy(), keep=min(_LAST, length))
    _, past = decoder.run(ids[:, :-1].numpy(), mask[:, :-1].numpy(), keep=1)
    last, _ = decoder.run(ids[:, -1:].numpy(), mask.numpy(), past, keep=1)
    difference = max(_differences(logits, expected)[real].max(), _differences(last[:, -1], expected_last).max())
    agreed = agreement(logits[real], expected[real]).mean()
    return Parity(float(difference), float(difference / largest(expected[real])), float(agreed), length)


def _differences(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return absolute differences; 0 where both are the same infinity."""
    return np.abs(np.where(logits == expected, 0, logits - expected))


def decoded(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> NDArray[np.float32]:
    """Compute the last token's logits from PyTorch's cache, whose keys were rotated at the shorter length."""
    before = _forward(model, ids[:, :-1], mask[:, :-1], use_cache=True)
    last = _forward(model, ids[:, -1:], mask, use_cache=True, past_key_values=before.past_key_values)
    return last.logits[:, -1].numpy()


def _forward(model: Any, ids: torch.Tensor, mask: torch.Tensor, **arguments: Any) -> Any:
    arguments["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    known = inspect.signature(model.forward).parameters
    supported = {name: value for name, value in arguments.items() if name in known}
    return model(input_ids=ids, attention_mask=mask, **supported)
