"""Recipes of the torch backend, by torchao."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from llmtrack.devices import KINDS
from llmtrack.errors import MissingDependencyError, ScenarioError
from llmtrack.host.packages import INSTALL_TORCHAO, OWN_RECIPES
from llmtrack.quantize.recipe import Recipe
from llmtrack.spec.scenario import Scalar

AMPERE, ADA = (8, 0), (8, 9)
"""Minimum compute capabilities for 4-bit weights and 8-bit floats."""


def _torchao() -> Any:
    try:
        return import_module("torchao.quantization")
    except ImportError as error:
        raise MissingDependencyError(
            f"the torch backend's recipes need torchao ({error}): {INSTALL_TORCHAO}"
        ) from error


def check_card(model: Any, capability: tuple[int, int], feature: str) -> None:
    """Check that a model is on a GPU of a compute capability.

    Raises:
        ScenarioError: it is on the CPU, or on an older GPU.
    """
    import torch

    device = next(model.parameters()).device
    actual = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if actual is None or actual < capability:
        name = KINDS[device.type].title if actual is None else f"this GPU ({actual[0]}.{actual[1]})"
        raise ScenarioError(
            f"{feature} need a GPU of compute capability {capability[0]}.{capability[1]} or more, which {name} is not: "
            "choose another recipe",
            kind="unsupported",
        )


def _apply(
    config: Callable[[Any], Any], model: Any, capability: tuple[int, int] | None = None, feature: str = ""
) -> dict[str, Scalar]:
    """Quantize the linear layers of a model; return their numbers.

    torchao skips layers of unsupported shapes and only logs it, so a model without any quantized layer is an error.

    Raises:
        ScenarioError: no layer was quantized, or the GPU does not support it.
    """
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    torchao = _torchao()
    if capability is not None:
        check_card(model, capability, feature)
    torchao.quantize_(model, config(torchao))
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    quantized = [module for module in linear if is_traceable_wrapper_subclass(module.weight)]
    if not quantized:
        raise ScenarioError("no linear layer has a shape that this recipe can quantize", kind="unsupported")
    return {"linear_layers": len(linear), "quantized_layers": len(quantized)}


# Recipes must not change compiler settings, which are global.
def _int8_weight_only(torchao: Any) -> Any:
    return torchao.Int8WeightOnlyConfig(set_inductor_config=False)


def _int8_dynamic(torchao: Any) -> Any:
    return torchao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)


def _int4_weight_only(torchao: Any) -> Any:
    return torchao.Int4WeightOnlyConfig(
        group_size=128, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )


def _float8_weight_only(torchao: Any) -> Any:
    return torchao.Float8WeightOnlyConfig(set_inductor_config=False)


def _float8_dynamic(torchao: Any) -> Any:
    return torchao.Float8DynamicActivationFloat8WeightConfig(granularity=torchao.PerRow(), set_inductor_config=False)


_FLOAT8 = "8-bit floats"

_recipe = partial(Recipe, backend="torch", needs=OWN_RECIPES["torch"])


RECIPES = (
    _recipe(
        "int8-weight-only",
        quantizes="weights of linear layers, 8 bits, a scale per output (torchao)",
        dtype="int8",
        apply=partial(_apply, _int8_weight_only),
    ),
    _recipe(
        "int8-dynamic",
        quantizes="weights and activations of linear layers, 8 bits, ranges per token (torchao)",
        dtype="int8",
        apply=partial(_apply, _int8_dynamic),
        arithmetic="int8",
        rounds_activations=True,
    ),
    _recipe(
        "int4-weight-only",
        quantizes="weights of linear layers, 4 bits in blocks of 128 (torchao)",
        dtype="int4",
        apply=partial(_apply, _int4_weight_only, capability=AMPERE, feature="4-bit weights of the torch backend"),
        computes="bfloat16",
        capability=AMPERE,
    ),
    _recipe(
        "float8-weight-only",
        quantizes="weights of linear layers, 8-bit floats, a scale per output (torchao)",
        dtype="float8",
        apply=partial(_apply, _float8_weight_only, capability=ADA, feature=_FLOAT8),
        computes="bfloat16",
        capability=ADA,
    ),
    _recipe(
        "float8-dynamic",
        quantizes="weights and activations of linear layers, 8-bit floats, scales per row (torchao)",
        dtype="float8",
        apply=partial(_apply, _float8_dynamic, capability=ADA, feature=_FLOAT8),
        computes="bfloat16",
        arithmetic="float8",
        rounds_activations=True,
        capability=ADA,
    ),
)
