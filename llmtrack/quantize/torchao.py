"""Recipes of the torch backend, through torchao."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llmtrack.errors import MissingDependencyError
from llmtrack.installed import INSTALL_TORCHAO
from llmtrack.quantize.recipe import Recipe


def _torchao() -> Any:
    try:
        return import_module("torchao.quantization")
    except ImportError as error:
        raise MissingDependencyError(
            f"the torch backend's recipes need torchao ({error}): {INSTALL_TORCHAO}"
        ) from error


def apply_weight_only(model: Any) -> None:
    """Store every linear layer's weight in 8 bits, a scale per output."""
    torchao = _torchao()
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())


def apply_dynamic(model: Any) -> None:
    """Compute every linear layer with 8-bit weights and activations, ranges taken per token from each call."""
    torchao = _torchao()
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())


RECIPES = (
    Recipe(
        "int8-weight-only",
        "torch",
        "weights of linear layers, 8 bits, a scale per output (torchao)",
        "int8",
        apply_weight_only,
    ),
    Recipe(
        "int8-dynamic",
        "torch",
        "weights and activations of linear layers, 8 bits, ranges per token (torchao)",
        "int8",
        apply_dynamic,
    ),
)
