"""Find engines by name: built-in ones, and those of other packages through entry points."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from llmtrack.devices import DTYPES
from llmtrack.engine import Backend, Engine, EngineInfo, Generated, Tokenized
from llmtrack.engines.options import GenaiOptions, LlamacppOptions, OnnxOptions, OpenvinoOptions, TorchOptions
from llmtrack.errors import UsageError
from llmtrack.host.entry_points import (
    ENGINE_POINTS,
    ReturnCheck,
    find_extension,
    instance_of,
    load_extension,
    make_checked,
    names_of,
    unusable,
)
from llmtrack.host.libraries import gc_paused
from llmtrack.quantize.recipe import Recipe, recipes
from llmtrack.spec.options import check_options, why_unusable
from llmtrack.spec.parameter import optional_text, require_text
from llmtrack.spec.scenario import Scalar, Variant


def _module(name: str) -> Callable[[Variant], Engine]:
    """Return the `load` function of a module, imported on first call."""

    def load(variant: Variant) -> Engine:
        with gc_paused():
            module = import_module(name)
        engine: Engine = module.load(variant)
        return engine

    return load


# Listed explicitly: `mlflow run` may start the project from its folder without an installation.
BUILTIN: dict[str, Backend] = {
    "genai": Backend(_module("llmtrack.engines.genai"), GenaiOptions),
    "llamacpp": Backend(_module("llmtrack.engines.llamacpp"), LlamacppOptions),
    "onnx": Backend(_module("llmtrack.engines.onnx"), OnnxOptions),
    "openvino": Backend(_module("llmtrack.engines.openvino"), OpenvinoOptions),
    "torch": Backend(_module("llmtrack.engines.torch.pytorch"), TorchOptions, ("float32", "bfloat16", "float16")),
}


def backends() -> list[str]:
    """Return the names of the available backends."""
    return sorted({*BUILTIN, *names_of(ENGINE_POINTS)})


def check_variant(variant: Variant) -> None:
    """Reject a variant with an unusable backend or invalid options, without loading a model.

    Raises:
        UsageError: there is no such backend, or neither it nor the recipe accepts an option or its value.
        ExtensionError: its package is broken.
    """
    _accepted(variant, variant.options)


def with_words(variant: Variant, words: Sequence[str]) -> Variant:
    """Add options given as words such as `threads=2` to a variant.

    Raises:
        UsageError: a word is invalid, or neither the backend nor the recipe accepts the option or its value.
        ExtensionError: the backend's package is broken.
    """
    for word in words:
        if "=" not in word:
            raise UsageError(f"invalid option {word!r}: write NAME=VALUE, such as threads=2")
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in words)]
    if repeated := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise UsageError(f"{repeated[0]} is given twice")
    added = _accepted(variant, pairs)
    return replace(variant, options=tuple(sorted({**dict(variant.options), **dict(added)}.items())))


def _accepted(variant: Variant, pairs: Iterable[tuple[str, Scalar]]) -> tuple[tuple[str, Scalar], ...]:
    """Validate and convert options for a variant's backend and recipe."""
    options = backend_of(variant.backend).options
    recipe = _recipe(variant)
    target = f"the {variant.backend} backend" + (f" with {recipe.name}" if recipe else "")
    return check_options(target, (options, *(recipe.option_types if recipe else ())), pairs)


def _recipe(variant: Variant) -> Recipe | None:
    key = (variant.backend, variant.quantization)
    return next((recipe for recipe in recipes() if (recipe.backend, recipe.name) == key), None)


def backend_of(name: str) -> Backend:
    """Return a backend: how it loads, its options, and its precisions.

    Raises:
        UsageError: there is no such backend.
        ExtensionError: its package is broken.
    """
    return BUILTIN.get(name) or extension_backend(_point(name))


def load_variant(variant: Variant) -> Engine:
    """Load the engine of a variant.

    Raises:
        UsageError: there is no such backend, or it does not accept an option.
        ExtensionError: the backend's package is broken.
        ModelLoadError: no model could be loaded.
        ScenarioError: the recipe cannot be applied here.
    """
    check_variant(variant)
    # Check before a slow export or conversion.
    if recipe := _recipe(variant):
        recipe.check(recipe.resolve_options(variant.options))
    load = partial(backend_of(variant.backend).load, variant)
    if variant.backend in BUILTIN:
        return load()
    return make_checked(_point(variant.backend), "load", load, incomplete, _ANSWERS)


_ANSWERS = {
    "encode": ReturnCheck(lambda ids: hasattr(ids, "__len__") and not isinstance(ids, str), "a list of token ids"),
    "tokenize": instance_of("a Tokenized", Tokenized),
    "decode": instance_of("a text", str),
    "generate": instance_of("a Generated", Generated),
    "score": ReturnCheck(lambda pair: isinstance(pair, tuple) and len(pair) == 2, "two tensors, sums and counts"),
    "next_token_logits": ReturnCheck(
        lambda logits: len(getattr(logits, "shape", ())) == 2, "a tensor (tokens, vocabulary)"
    ),
    "peak_memory_bytes": instance_of("a number of bytes or None", int, float, type(None)),
}
"""What the methods of an engine return."""


def extension_backend(point: EntryPoint) -> Backend:
    """Return the backend of an entry point.

    Raises:
        ExtensionError: the entry point is broken.
    """
    loaded = load_extension(point)
    backend = loaded if isinstance(loaded, Backend) else Backend(loaded)
    if not callable(backend.load):
        raise unusable(point, f"it is a {type(loaded).__name__}, and not a function load(variant) or a Backend")
    if reason := why_unusable(backend.options):
        raise unusable(point, reason)
    if not (isinstance(backend.precisions, tuple) and {*DTYPES} >= {*backend.precisions}):
        raise unusable(point, f"its precisions {backend.precisions!r} are not a tuple of {', '.join(DTYPES)}")
    return backend


def incomplete(engine: Any) -> str:
    """Describe what an object lacks to be an engine; empty if nothing."""
    missing = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(engine, name)]
    if missing:
        return f"its engine {type(engine).__name__} lacks {', '.join(missing)}"
    if not isinstance(engine.info, EngineInfo):
        return f"info of its engine {type(engine).__name__} is a {type(engine.info).__name__}, and no EngineInfo"
    return ""


def _point(name: str) -> EntryPoint:
    point = find_extension(ENGINE_POINTS, name)
    if point is None:
        raise UsageError(f"unknown backend {name!r}: there are {', '.join(backends())}")
    return point


def load_engine(
    model: str,
    *,
    revision: str | None = None,
    backend: str = Variant.backend,
    device: str = Variant.device,
    dtype: str = Variant.dtype,
    quantization: str = Variant.quantization,
    **options: Scalar,
) -> Engine:
    """Load a model by name: hub id, folder, GGUF file, `packaged:NAME`, `synthetic:PRESET`, or a comma list of them.

    Args:
        revision: branch, tag or commit of a hub model.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `float32`, `float16` or `bfloat16`.
        quantization: recipe name, or `none`.
        options: further options of the backend and the recipe, such as `threads=2`.

    Raises:
        UsageError: a backend, device or dtype is unavailable, or neither backend nor recipe accepts an option.
        ModelLoadError: no model could be loaded; the message lists every candidate with its reason.
    """
    texts = {"model": model, "backend": backend, "device": device, "quantization": quantization}
    checked = {name: require_text(name, value) for name, value in texts.items()}
    revision = optional_text("revision", revision)
    engine = load_variant(Variant(revision=revision, dtype=dtype, options=tuple(sorted(options.items())), **checked))
    from llmtrack.models.load import RANDOM_WEIGHTS

    if RANDOM_WEIGHTS in engine.info.warnings:
        warnings.warn(f"{engine.info.model_id} has {RANDOM_WEIGHTS}, and so is its text", stacklevel=2)
    return engine
