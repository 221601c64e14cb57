"""Compare converted models with PyTorch: tools have been known to mistake a layer for the head."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError
from llmtrack.host.isolated import run_isolated
from llmtrack.measure.finite import NON_FINITE
from llmtrack.models.cache import read_manifest
from llmtrack.models.weights import weight_files
from llmtrack.onnx.lengths import (
    LENGTH_DEPENDENT_ROPE,
    PARITY_FACTS,
    Parity,
    at_every_length,
    check_lengths,
    rope_kind,
)
from llmtrack.spec.scenario import Scalar

if TYPE_CHECKING:
    import torch

_LAST_POSITIONS = 64
"""Number of last positions compared of a row: the logits of all would take gigabytes."""

MIN_CORRELATION = 0.5
"""Minimum correlation of a quantized model's logits with PyTorch's: 4 bits leave 0.9 or more, a wrong graph none."""

_BYTES = 4
"""Assumed bytes per weight; too few only overestimates the number of compared lengths."""


class DecodingEngine(Engine, Protocol):
    """An engine that exposes the logits of a decoded token."""

    def decoded_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the (vocabulary) logits after a row's last token, decoded from the cache of the preceding ones."""
        ...


OpenFolder = Callable[[Path], DecodingEngine]


def require_parity(open_folder: OpenFolder, source: Path, folder: Path) -> dict[str, float]:
    """Check in another process that the logits of a float model equal PyTorch's; return the differences.

    Args:
        open_folder: a module-level function that opens the converted folder as an engine.
        source: the model as saved by transformers.

    Raises:
        ScenarioError: they differ by more than rounding.
    """
    parity, _ = run_isolated("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    if not parity.holds:
        raise _mismatch(str(parity))
    return parity.facts


def require_correlation(open_folder: OpenFolder, source: Path, folder: Path) -> dict[str, float]:
    """Check in another process that the logits of a quantized model correlate with PyTorch's in float.

    Raises:
        ScenarioError: they do not.
    """
    _, correlation = run_isolated("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    if not correlation >= MIN_CORRELATION:
        raise _mismatch(f"the correlation of their logits is {correlation:.2f}")
    return {}


def has_length_thresholds(folder: Path) -> bool:
    """Return whether the model's computation changes at one of the compared lengths."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = sum(path.stat().st_size for path in weight_files(folder)[1])
    return len(check_lengths(config.get("text_config") or config, size // _BYTES)) > 1


def parity_facts(folder: Path) -> dict[str, Scalar]:
    """Return the parity of a converted model with PyTorch, as params."""
    manifest = read_manifest(folder)
    return {name: manifest[name] for name in PARITY_FACTS if name in manifest}


def _mismatch(why: str) -> ScenarioError:
    return ScenarioError(
        f"the model converted by the runtime's own tool does not match PyTorch ({why}): it is not used, take "
        "backend=torch",
        kind="unsupported",
    )


def _compare(open_folder: OpenFolder, source: str, folder: str) -> tuple[Parity, float]:
    """Return the worst parity over all compared lengths, and the lowest correlation."""
    import torch

    from llmtrack.models.load import load_model

    model: Any = load_model(source, device="cpu", dtype=torch.float32).model
    engine = open_folder(Path(folder))
    correlations: list[float] = []

    def compare(length: int, seed: int) -> Parity:
        parity, correlation = _compare_at(model, engine, length, seed)
        correlations.append(correlation)
        return parity

    config = model.config.get_text_config().to_dict()
    parameters = sum(weight.numel() for weight in model.parameters())
    worst = at_every_length(config, parameters, compare, engine.info.context_length)
    return worst, float(np.min(correlations))  # NaN counts as no agreement


def _compare_at(model: Any, engine: DecodingEngine, length: int, seed: int) -> tuple[Parity, float]:
    """Compare the logits of a row of this length with PyTorch's; the last token is also decoded from the cache."""
    import torch

    from llmtrack.onnx.parity import agreement, decoded, largest

    config = model.config.get_text_config().to_dict()
    ids = np.random.default_rng(seed).integers(0, engine.info.vocab_size, length).tolist()
    row = torch.tensor([ids])
    with torch.inference_mode():
        # With length-dependent rotary angles, cached keys keep the angles of their own length.
        cache_differs = rope_kind(config) in LENGTH_DEPENDENT_ROPE
        last = decoded(model, row, torch.ones_like(row))[0] if cache_differs else None
        expected = model(input_ids=row).logits[0, -_LAST_POSITIONS:].double().numpy()
    if not np.isfinite(expected.max(axis=-1)).all():
        raise ScenarioError("the logits are not finite in float32: look for damaged weights", kind=NON_FINITE)
    logits = engine.next_token_logits(ids)[-_LAST_POSITIONS:].double().numpy()
    logits = np.concatenate([logits, engine.decoded_logits(ids).double().numpy()[None]])
    expected = np.concatenate([expected, expected[-1:] if last is None else last[None]])
    known = np.isfinite(expected)  # masked entries of a vocabulary may be -inf
    difference = float(np.abs(logits - expected)[known].max())
    agreed = float(agreement(logits, expected).mean())
    return Parity(difference, difference / largest(expected), agreed, length), float(
        np.corrcoef(logits[known], expected[known])[0, 1]
    )
