"""Export a model to an ONNX decoder with a KV cache through Optimum, and check that it says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto

from llmtrack.engines.onnx_session import MODEL_FILE, OnnxDecoder
from llmtrack.engines.padding import pad_rows
from llmtrack.errors import ScenarioError
from llmtrack.models.load import LoadedModel, load_model
from llmtrack.quantize import graph
from llmtrack.quantize.attention import Rotary, fuse_attention

TASK = "text-generation-with-past"

PARITY_BOUND = 1e-3
"""Difference of logits from PyTorch's that is an error, as a share of the largest logit; rounding gives 1e-5."""
LEAST_AGREEMENT = 0.98
"""Share of positions at which the most likely token must be the same."""

_ROWS, _LONGEST, _SEED = 3, 48, 0


def export(spec: str, revision: str | None, folder: Path) -> dict[str, Any]:
    """Write `model.onnx`, config and tokenizer of a model into an empty folder.

    Returns:
        Facts for the folder's manifest: how far its logits are from PyTorch's, and how attention is computed.

    Raises:
        ModelLoadError: the model cannot be loaded.
        ScenarioError: it cannot be exported, or what was exported does not say what PyTorch says.
    """
    loaded = load_model(spec, device="cpu", dtype=torch.float32, revision=revision)
    _export(loaded, folder)
    loaded.tokenizer.save_pretrained(str(folder))
    path = folder / MODEL_FILE
    rotary = rotary_of(loaded.model)
    exported = graph.load(path)
    graph.plain_products(exported)
    found: Parity | None = None
    for kind, change in _ways(rotary):
        model = graph.copy_of(exported)
        if not change(model):
            continue
        graph.trim_logits(model)
        graph.note_types(model)
        graph.save(model, path)
        found = parity(loaded, OnnxDecoder(path))
        if found.holds:
            return {
                "parity_max_difference": found.difference,
                "parity_max_share": found.share,
                "parity_top1_agreement": found.top1_agreement,
                "onnx_attention": kind,
            }
    raise ScenarioError(
        f"the ONNX export of {loaded.model_id} does not say what PyTorch says ({found}): it is not used, take backend=torch",
        "unsupported",
    )


def _ways(rotary: Rotary | None) -> list[tuple[str, Callable[[ModelProto], bool]]]:
    """Return how attention may be computed, the fastest first, and what changes a graph to it."""
    ways: list[tuple[str, Callable[[ModelProto], bool]]] = [("as exported", lambda model: True)]
    if rotary is not None:
        ways.insert(0, ("GroupQueryAttention", lambda model: fuse_attention(model, rotary) > 0))
    return ways


def _export(loaded: LoadedModel, folder: Path) -> None:
    from optimum.exporters.onnx import onnx_export_from_model

    try:
        onnx_export_from_model(loaded.model, str(folder), task=TASK, do_validation=False)
    except OSError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise ScenarioError(
            f"{type(loaded.model).__name__} cannot be exported to ONNX: {text[:300]} (use backend=torch)",
            "unsupported",
        ) from error


def rotary_of(model: Any) -> Rotary | None:
    """Return what the fused attention needs to know of a model, or None if it is not of the kind that it computes."""
    config = model.config.get_text_config()
    embedding = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(embedding, "inv_freq", None)
    heads = getattr(config, "num_attention_heads", None)
    if frequencies is None or not heads:
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if 2 * len(frequencies) != width:  # only a part of each head is rotated
        return None
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies.float())
    scaling = float(getattr(embedding, "attention_scaling", 1.0))
    return Rotary(
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        cos=(angles.cos() * scaling).numpy(),
        sin=(angles.sin() * scaling).numpy(),
        scale=width**-0.5,
    )


@dataclass(frozen=True)
class Parity:
    """How far an export's logits are from PyTorch's.

    Attributes:
        difference: the largest absolute one.
        share: the same as a share of the largest logit.
        top1_agreement: share of positions at which the most likely token is the same.
    """

    difference: float
    share: float
    top1_agreement: float

    @property
    def holds(self) -> bool:
        """Whether the difference is one of rounding."""
        return self.share <= PARITY_BOUND and self.top1_agreement >= LEAST_AGREEMENT

    def __str__(self) -> str:
        return (
            f"logits differ by up to {self.difference:.2g}, {self.share:.2g} of the largest, and the most likely token in "
            f"{1 - self.top1_agreement:.1%} of places"
        )


def parity(loaded: LoadedModel, decoder: OnnxDecoder) -> Parity:
    """Compare logits with PyTorch's: of a left-padded batch, and of a last token that is decoded from the cache.

    Raises:
        ScenarioError: PyTorch's are not finite; of kind `non_finite`.
    """
    vocabulary = int(loaded.model.config.get_text_config().vocab_size)
    context = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None) or _LONGEST
    longest = min(_LONGEST, context)
    random = np.random.default_rng(_SEED)
    rows = [random.integers(0, vocabulary, longest - 5 * row).tolist() for row in range(_ROWS)]
    ids, mask = pad_rows(rows, 0, "left")
    position_ids = (mask.cumsum(dim=1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids}
    with torch.inference_mode():
        expected = _forward(loaded.model, inputs)
    real = mask.numpy().astype(bool)
    if not np.isfinite(expected[real].max(axis=-1)).all():  # masked entries of a vocabulary may be -inf
        raise ScenarioError(
            f"the logits of {loaded.model_id} are not finite in float32: look for damaged weights",
            "non_finite",
        )
    whole, _ = decoder.run(ids.numpy(), mask.numpy())
    _, past = decoder.run(ids[:, :-1].numpy(), mask[:, :-1].numpy(), keep=1)
    last, _ = decoder.run(ids[:, -1:].numpy(), mask.numpy(), past, keep=1)
    difference = max(np.abs(whole - expected)[real].max(), np.abs(last[:, -1] - expected[:, -1]).max())
    agreement = (whole.argmax(axis=-1) == expected.argmax(axis=-1))[real].mean()
    share = difference / np.abs(expected[real]).max()
    return Parity(float(difference), float(share), float(agreement))


def _forward(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    try:
        return model(**inputs).logits.numpy()
    except TypeError:  # a model without position ids
        return model(**{key: value for key, value in inputs.items() if key != "position_ids"}).logits.numpy()
