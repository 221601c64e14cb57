"""Find and convert the model of a variant for another runtime, and compare it with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from llmtrack.convert.build import Converter, converted
from llmtrack.convert.fidelity import Open, has_thresholds, parity_facts, says_alike, says_the_same
from llmtrack.errors import MissingDependencyError
from llmtrack.host.packages import install, missing_modules
from llmtrack.models.disk import FLOAT_BITS
from llmtrack.models.folder import model_folder
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant


@dataclass(frozen=True)
class Conversion:
    """A model converted for another runtime, and what to track of it.

    Attributes:
        folder: graph and weights, and the model's own config and tokenizer.
        model_id: the model's name in tracked runs.
        dtype_label: the storage type of the weights.
        facts: params to track.
        tags: provenance to track.
        warnings: warnings.
    """

    folder: Path
    model_id: str
    dtype_label: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def convert(converter: Converter, variant: Variant, open_folder: Open) -> Conversion:
    """Return the model of a variant converted for a runtime; convert it if necessary.

    Args:
        converter: the runtime's own tool.
        variant: the model, its precision, and a recipe with its options.
        open_folder: a module-level function that opens the result as an engine, for the comparison.

    Raises:
        MissingDependencyError: the runtime is not installed, or its tool's environment cannot be created.
        UsageError: there is no such recipe, or it does not accept a value.
        ModelLoadError: no candidate could be loaded, or the cache cannot be used.
        ScenarioError: the model cannot be converted, or the result does not match the model.
    """
    if missing := missing_modules(variant.backend):
        raise MissingDependencyError(
            f"the {variant.backend} backend needs {', '.join(missing)}: {install(variant.backend)}"
        )
    recipe = None if variant.quantization == NONE else find_recipe(variant.backend, variant.quantization)
    options = recipe.settled(variant.options) if recipe else {}
    arguments = recipe.applied(options) if recipe else converter.unquantized
    source = model_folder(variant.model, variant.revision)
    label = recipe.name if recipe else variant.dtype
    check = partial(says_alike if recipe else says_the_same, open_folder)
    if recipe and has_thresholds(source.path):
        # Compare in float: a missing attention window changes less than rounding to 4 bits, which would hide it.
        exact = partial(says_the_same, open_folder)
        converted(converter, source, converter.unquantized, "float32", FLOAT_BITS, exact)
    folder = converted(converter, source, arguments, label, recipe.bits if recipe else FLOAT_BITS, check)
    return Conversion(
        folder,
        source.model_id,
        f"{recipe.dtype} weights (float32)" if recipe else variant.dtype,
        {**source.facts, **options, **parity_facts(folder)},
        source.tags,
        source.warnings,
    )
