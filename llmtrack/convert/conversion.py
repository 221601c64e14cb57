"""Convert the model of a variant for another runtime by its own tool, cache the result, and compare it with PyTorch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from llmtrack.convert.environment import BuildEnvironment
from llmtrack.convert.fidelity import (
    OpenFolder,
    has_length_thresholds,
    parity_facts,
    require_correlation,
    require_parity,
)
from llmtrack.errors import MissingDependencyError, ScenarioError, is_out_of_memory
from llmtrack.host.packages import available, install_command, missing_modules
from llmtrack.models.cache import build_once, safe_name
from llmtrack.models.disk import FLOAT_BITS, count_weights
from llmtrack.models.durations import timed_step
from llmtrack.models.folder import ModelFolder, model_folder
from llmtrack.models.load_errors import conversion_failure
from llmtrack.models.weights import weight_files
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.serialization import digest

VERSION = 3
"""Increment when the result of a conversion changes, to invalidate the cache."""

# Config, tokenizer and generation settings: copied from the source, so that every backend has the same.
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges*",
    "*.model",
)


@dataclass(frozen=True)
class Converter:
    """A runtime's own conversion tool.

    Attributes:
        tool: its name, for messages.
        command: turns the model's folder, the empty target and the recipe's arguments into the tool's arguments.
        unquantized: its arguments without a recipe.
        by_float: whether it writes the model in float32 first and then quantizes it.
        embedding_bits: minimum bits in which it stores an embedding.
    """

    backend: str
    tool: str
    environment: BuildEnvironment
    command: Callable[[Path, Path, Sequence[str]], Sequence[str]]
    unquantized: Sequence[str]
    by_float: bool = False
    embedding_bits: int = FLOAT_BITS


@dataclass(frozen=True)
class Conversion:
    """A model converted for another runtime, and what to track of it.

    Attributes:
        folder: graph and weights, and the model's own config and tokenizer.
        dtype_label: storage type of the weights.
        facts: params to track.
        tags: provenance to track.
    """

    folder: Path
    model_id: str
    dtype_label: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def convert(converter: Converter, variant: Variant, open_folder: OpenFolder) -> Conversion:
    """Return the model of a variant converted for a runtime; convert it if necessary.

    Args:
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
            f"the {variant.backend} backend needs {', '.join(missing)}: {install_command(variant.backend)}"
        )
    recipe = None if variant.quantization == NONE else find_recipe(variant.backend, variant.quantization)
    options = recipe.resolve_options(variant.options) if recipe else {}
    arguments = recipe.run(options) if recipe else converter.unquantized
    source = model_folder(variant.model, variant.revision)
    label = recipe.name if recipe else variant.dtype
    check = partial(require_correlation if recipe else require_parity, open_folder)
    if recipe and has_length_thresholds(source.path):
        # Compare in float: a missing attention window changes less than rounding to 4 bits, which would hide it.
        exact = partial(require_parity, open_folder)
        convert_folder(converter, source, converter.unquantized, "float32", FLOAT_BITS, exact)
    folder = convert_folder(converter, source, arguments, label, recipe.bits if recipe else FLOAT_BITS, check)
    return Conversion(
        folder,
        source.model_id,
        f"{recipe.dtype} weights (float32)" if recipe else variant.dtype,
        {**source.facts, **options, **parity_facts(folder)},
        source.tags,
        source.warnings,
    )


def convert_folder(
    converter: Converter,
    source: ModelFolder,
    arguments: Sequence[str],
    label: str,
    bits: int,
    check: Callable[[Path, Path], dict[str, float]],
) -> Path:
    """Return the folder of a converted model; convert it if necessary.

    Args:
        arguments: of the recipe, including its options.
        label: name of the recipe or the precision.
        bits: bits of a stored weight; 0: unknown.
        check: compares the result (the second folder) with the model (the first), and returns facts.

    Raises:
        MissingDependencyError: the tool's environment cannot be created.
        ScenarioError: the model cannot be converted, or the result does not match the model.
        ModelLoadError: the cache cannot be used.
    """
    stem = safe_name(Path(source.model_id).name)
    key = digest([source.tags, VERSION, converter.environment.requirements, list(arguments)])
    step = f"converting to {label} by the tool of {converter.backend}"

    def build(folder: Path) -> dict[str, Any]:
        command = converter.command(source.path, folder, arguments)
        converter.environment.python()  # not part of the conversion time
        with timed_step(step, source.model_id), explaining_unsupported(converter, source.path):
            converter.environment.run(step, command, folder)
        for pattern in _COPIED:
            for path in source.path.glob(pattern):
                shutil.copy2(path, folder)
        return {"arguments": list(arguments), **check(source.path, folder)}

    weights = count_weights(weight_files(source.path)[1])
    needed = weights.stored(bits, converter.embedding_bits)
    if converter.by_float and bits < FLOAT_BITS:
        needed += weights.stored()
    return build_once(f"{stem}-{converter.backend}-{label}-{key}", build, needed)


@contextmanager
def explaining_unsupported(converter: Converter, source: Path) -> Iterator[None]:
    """Report an unsupported model instead of errors of the tool's packages.

    Raises:
        ScenarioError: the tool failed.
    """
    try:
        yield
    except ScenarioError as error:
        if is_out_of_memory(error):
            raise
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        architecture = str(config.get("model_type") or "?")
        remedy = "use backend=torch or onnx" if _onnx_supports(architecture) else "use backend=torch"
        message = conversion_failure(converter.tool, architecture, str(error), remedy)
        raise ScenarioError(message, kind="unsupported") from error


def _onnx_supports(architecture: str) -> bool:
    if not available("onnx"):
        return False
    from llmtrack.onnx.export import supports

    return supports(architecture)
