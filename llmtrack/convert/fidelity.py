"""Check converted models against PyTorch: tools have been known to mistake a layer for the head."""

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
from llmtrack.onnx.lengths import LENGTH_DEPENDENT_ROPE, Parity, at_every_length, check_lengths, rope_kind
from llmtrack.spec.scenario import Scalar

if TYPE_CHECKING:
    import torch

_KEPT = 64
"""Number of last positions compared of a long row: the logits of all would take gigabytes."""

LEAST_CORRELATION = 0.5
"""Minimum correlation of a quantized model's logits with PyTorch's: 4 bits leave 0.9 or more, a wrong graph none."""

_BYTES = 4
"""Assumed bytes per weight; too few only overestimates the number of compared lengths."""

FACTS = ("parity_max_difference", "parity_max_share", "parity_top1_agreement")


class DecodingEngine(Engine, Protocol):
    """An engine that exposes the logits of a decoded token."""

    def decoded_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the (vocabulary) logits after the last token of a row, decoded from the cache of the preceding ones."""
        ...


OpenFolder = Callable[[Path], DecodingEngine]


def require_parity(open_folder: OpenFolder, source: Path, folder: Path) -> dict[str, float]:
    """Compare the logits of a float model with PyTorch's, in a separate process; return the differences.

    Args:
        open_folder: a module-level function that opens the second folder as an engine.
        source: the model as saved by transformers.
        folder: the converted model.

    Raises:
        ScenarioError: they differ by more than rounding.
    """
    found = run_isolated("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    difference, share, agreement = (found[name] for name in FACTS)
    parity = Parity(difference, share, agreement, round(found["length"]))
    if not parity.holds:
        raise _refused(str(parity))
    return {name: found[name] for name in FACTS}


def require_correlation(open_folder: OpenFolder, source: Path, folder: Path) -> dict[str, float]:
    """Check that the logits of a quantized model correlate with PyTorch's in float.

    Raises:
        ScenarioError: they do not.
    """
    found = run_isolated("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    if not found["correlation"] >= LEAST_CORRELATION:
        raise _refused(f"the correlation of their logits is {found['correlation']:.2f}")
    return {}


def has_length_thresholds(folder: Path) -> bool:
    """Return whether the model's computation changes at one of the compared lengths."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = sum(path.stat().st_size for path in weight_files(folder)[1])
    return len(check_lengths(config.get("text_config") or config, size // _BYTES)) > 1


def parity_facts(folder: Path) -> dict[str, Scalar]:
    """Return the parity of a converted model with PyTorch, as params."""
    manifest = read_manifest(folder)
    return {name: manifest[name] for name in FACTS if name in manifest}


def _refused(why: str) -> ScenarioError:
    return ScenarioError(
        f"the model converted by the runtime's own tool does not match PyTorch ({why}): it is not used, take "
        "backend=torch",
        kind="unsupported",
    )


def _compare(open_folder: OpenFolder, source: str, folder: str) -> dict[str, float]:
    import torch

    from llmtrack.models.load import load_model

    model: Any = load_model(source, device="cpu", dtype=torch.float32).model
    engine = open_folder(Path(folder))
    correlations: list[float] = []

    def compare(length: int, seed: int) -> Parity:
        found, correlation = _at(model, engine, length, seed)
        correlations.append(correlation)
        return found

    config = model.config.get_text_config().to_dict()
    parameters = sum(weight.numel() for weight in model.parameters())
    worst = at_every_length(config, parameters, compare, engine.info.context_length)
    return {
        "parity_max_difference": worst.difference,
        "parity_max_share": worst.share,
        "parity_top1_agreement": worst.top1_agreement,
        "length": worst.length,
        # NaN counts as no agreement.
        "correlation": float(np.min(correlations)),
    }


def _at(model: Any, engine: DecodingEngine, length: int, seed: int) -> tuple[Parity, float]:
    """Compare the logits of a row of so many tokens with PyTorch's; the last token is also decoded from the cache."""
    import torch

    from llmtrack.onnx.parity import agreement, decoded, largest

    config = model.config.get_text_config().to_dict()
    ids = np.random.default_rng(seed).integers(0, engine.info.vocab_size, length).tolist()
    row = torch.tensor([ids])
    with torch.inference_mode():
        # With length-dependent rotary angles, cached keys keep the angles of their own length.
        own = rope_kind(config) in LENGTH_DEPENDENT_ROPE
        last = decoded(model, row, torch.ones_like(row))[0] if own else None
        expected = model(input_ids=row).logits[0, -_KEPT:].double().numpy()
    if not np.isfinite(expected.max(axis=-1)).all():
        raise ScenarioError("the logits are not finite in float32: look for damaged weights", kind=NON_FINITE)
    found = engine.next_token_logits(ids)[-_KEPT:].double().numpy()
    found = np.concatenate([found, engine.decoded_logits(ids).double().numpy()[None]])
    expected = np.concatenate([expected, expected[-1:] if last is None else last[None]])
    known = np.isfinite(expected)  # masked entries of a vocabulary may be -inf
    difference = float(np.abs(found - expected)[known].max())
    agreed = float(agreement(found, expected).mean())
    return Parity(difference, difference / largest(expected), agreed, length), float(
        np.corrcoef(found[known], expected[known])[0, 1]
    )
