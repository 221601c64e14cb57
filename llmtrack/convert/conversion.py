"""The model of a variant in the form of another runtime: found, converted, and compared with what PyTorch says."""

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
    """A model in the form of another runtime, and what is to be tracked of it.

    Attributes:
        folder: graph and weights, and the model's own config and tokenizer.
        model_id: what to call it in tracked runs.
        dtype_label: what the weights are stored as.
        facts: params to track.
        tags: provenance to track.
        warnings: findings in words.
    """

    folder: Path
    model_id: str
    dtype_label: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def convert(converter: Converter, variant: Variant, open_folder: Open) -> Conversion:
    """Return the model of a variant in the form of a runtime, and make it if that was not done yet.

    Args:
        converter: the runtime's own tool.
        variant: the model, its precision, and a recipe with its options.
        open_folder: a function of a module that opens what was made as an engine, to be compared with the model.

    Raises:
        MissingDependencyError: the runtime is not installed, or its tool's environment cannot be made.
        UsageError: there is no such recipe, or it takes no such value.
        ModelLoadError: no candidate could be loaded, or the cache cannot be used.
        ScenarioError: the model cannot be converted, or what was made does not say what it says.
    """
    if missing := missing_modules(variant.backend):
        raise MissingDependencyError(
            f"the {variant.backend} backend needs {', '.join(missing)}: {install(variant.backend)}"
        )
    recipe = None if variant.quantization == NONE else find_recipe(variant.backend, variant.quantization)
    options = recipe.settled(variant.options) if recipe else {}
    arguments = recipe.apply(options) if recipe else converter.unquantized
    source = model_folder(variant.model, variant.revision)
    label = recipe.name if recipe else variant.dtype
    check = partial(says_alike if recipe else says_the_same, open_folder)
    if recipe and has_thresholds(source.path):
        # What rounding hides shows in float: a window that is left out changes less than 4 bits do.
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
