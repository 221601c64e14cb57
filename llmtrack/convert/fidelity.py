"""Whether what a runtime's own tool made of a model says what PyTorch says: such tools have mistaken a layer for the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError
from llmtrack.models.cache import read_manifest
from llmtrack.onnx.parity import LEAST_AGREEMENT, PARITY_BOUND
from llmtrack.quantize.apart import run_apart
from llmtrack.scenario import Scalar

PROBE_TOKENS = 48

LEAST_CORRELATION = 0.5
"""Of a quantized model's logits with those of the model: rounding to 4 bits leaves 0.9 and more, another graph nothing."""

FACTS = ("parity_max_difference", "parity_max_share", "parity_top1_agreement")

Open = Callable[[Path], Engine]


def says_the_same(open_folder: Open, source: Path, folder: Path) -> dict[str, float]:
    """Compare the logits of a model in float with PyTorch's, in a process of its own, and return how far they are.

    Args:
        open_folder: a function of a module that opens the second folder as an engine.
        source: the model as transformers saves it.
        folder: what was made of it.

    Raises:
        ScenarioError: they differ by more than rounding.
    """
    found = run_apart("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    # What is no number is no agreement.
    if not (found["parity_max_share"] <= PARITY_BOUND and found["parity_top1_agreement"] >= LEAST_AGREEMENT):
        raise _refused(
            f"logits differ by up to {found['parity_max_share']:.2g} of the largest, and the most likely token in "
            f"{1 - found['parity_top1_agreement']:.1%} of places"
        )
    return {name: found[name] for name in FACTS}


def says_alike(open_folder: Open, source: Path, folder: Path) -> dict[str, float]:
    """Compare the logits of a quantized model with PyTorch's in float: they must be of the same model.

    Raises:
        ScenarioError: they have nothing to do with one another.
    """
    found = run_apart("comparing with PyTorch", _compare, open_folder, str(source), str(folder))
    if not found["correlation"] >= LEAST_CORRELATION:
        raise _refused(f"the correlation of their logits is {found['correlation']:.2f}")
    return {}


def parity_facts(folder: Path) -> dict[str, Scalar]:
    """Return what is known of how a converted model compares with PyTorch, as params."""
    manifest = read_manifest(folder)
    return {name: manifest[name] for name in FACTS if name in manifest}


def _refused(why: str) -> ScenarioError:
    return ScenarioError(
        f"what the runtime's own tool made of this model does not say what PyTorch says ({why}): it is not used, take "
        "backend=torch",
        "unsupported",
    )


def _compare(open_folder: Open, source: str, folder: str) -> dict[str, float]:
    import torch

    from llmtrack.measure.finite import NON_FINITE
    from llmtrack.models.load import load_model

    loaded = load_model(source, device="cpu", dtype=torch.float32)
    engine: Any = open_folder(Path(folder))
    ids = np.random.default_rng(0).integers(0, engine.info.vocab_size, PROBE_TOKENS).tolist()
    found = engine.next_token_logits(ids).double().numpy()
    with torch.inference_mode():
        expected = loaded.model(input_ids=torch.tensor([ids])).logits[0].double().numpy()
    if not np.isfinite(expected.max(axis=-1)).all():
        raise ScenarioError("the logits are not finite in float32: look for damaged weights", NON_FINITE)
    known = np.isfinite(expected)  # masked entries of a vocabulary may be -inf
    difference = np.abs(found - expected)[known].max()
    return {
        "parity_max_difference": float(difference),
        "parity_max_share": float(difference / np.abs(expected[known]).max()),
        "parity_top1_agreement": float((found.argmax(axis=-1) == expected.argmax(axis=-1)).mean()),
        "correlation": float(np.corrcoef(found[known], expected[known])[0, 1]),
    }
