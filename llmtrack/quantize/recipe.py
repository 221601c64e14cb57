"""Quantization recipes as data, and their registry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.entry_points import (
    RECIPE_POINTS,
    ReturnCheck,
    extensions,
    instance_of,
    load_extension,
    naming_plugin,
    unusable,
)
from llmtrack.host.packages import missing_modules, not_installed
from llmtrack.quantize.options import CalibrationText
from llmtrack.spec.options import NoOptions, chosen, parameters, why_unusable
from llmtrack.spec.scenario import Scalar

# Registered without entry points, like the built-in engines.
BUILTIN = (
    "llmtrack.quantize.weight_only",
    "llmtrack.quantize.int8",
    "llmtrack.quantize.torchao",
    "llmtrack.convert.genai",
    "llmtrack.convert.openvino",
    "llmtrack.quantize.gguf",
)


@dataclass(frozen=True)
class Job:
    """The input of a recipe of the onnx backend.

    Attributes:
        source: folder of the float export: `model.onnx`, config and tokenizer.
        target: empty folder for the quantized `model.onnx`; the caller copies the other files.
        options: the recipe's, defaults included.
        rows: token ids of the calibration text; empty if the recipe is not calibrated.
    """

    source: Path
    target: Path
    options: Mapping[str, Scalar]
    rows: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Built:
    """The findings of a recipe of the onnx backend.

    Attributes:
        facts: tracked as params.
        ranking: a row per linear layer, worst first, if layers were ranked: name, error, and whether it was excluded.
        attempts: the steps of the search for the number of layers to exclude.
    """

    facts: Mapping[str, Scalar] = field(default_factory=dict)
    ranking: tuple[Mapping[str, Any], ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()


def _accept_all(options: Mapping[str, Scalar]) -> None:
    pass


@dataclass(frozen=True)
class Recipe:
    """A way to quantize a model after training.

    Attributes:
        name: as in `--recipes`, after the backend and a slash.
        backend: name of the engine that runs the result.
        quantizes: description of what it quantizes.
        dtype: label of the quantized weights' type.
        apply: the implementation, called according to the backend. onnx: with a `Job`; returns a `Built`. torch: with a
            model, which it changes in place; may return facts to track. llamacpp: with a GGUF file in F16 and the file to
            write. genai and openvino: with the options; returns arguments of their conversion tool. For torch and llamacpp,
            declared options are an additional argument.
        options: frozen dataclass of its options, each field with an `Option` (see `llmtrack.options`).
        calibrated: whether it needs a calibration text.
        depends_on_batch: whether the result for a row depends on the other rows and pads of its batch.
        rounds_activations: whether activations are rounded in each call, which enlarges a difference in the last bit to a
            step of that rounding.
        version: increment when the result changes, to invalidate the cache.
        computes: default dtype of what is not quantized.
        arithmetic: type of its matrix products, as in `EngineInfo`; empty: `computes`.
        capability: minimum compute capability of a GPU; None: it also runs on a CPU.
        needs: required modules besides the backend's own.
        check: raises a `ScenarioError`, before a model is loaded, if this machine does not support the options.
    """

    name: str
    backend: str
    quantizes: str
    dtype: str
    apply: Callable[..., Any]
    options: type = NoOptions
    calibrated: bool = False
    depends_on_batch: bool = False
    rounds_activations: bool = False
    version: int = 1
    computes: str = "float32"
    arithmetic: str = ""
    capability: tuple[int, int] | None = None
    needs: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Scalar]], object] = _accept_all

    @property
    def lacking(self) -> list[str]:
        """Required modules that are not installed."""
        return [*missing_modules(self.backend), *not_installed(self.needs)]

    @property
    def bits(self) -> int:
        """Bits of a stored weight by the dtype's label; 0: unknown."""
        match = re.search(r"\d+", self.dtype)
        return int(match[0]) if match else 0

    @property
    def label(self) -> str:
        """Backend and name, as the user writes it."""
        return f"{self.backend}/{self.name}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of every run with it."""
        if not self.rounds_activations:
            return ()
        return (
            f"{self.name} rounds activations, so a difference in the last bit can change the generated ids: expect different ids "
            "with another batch, number of threads or CPU",
        )

    def resolve_options(self, options: Sequence[tuple[str, Scalar]]) -> dict[str, Scalar]:
        """Return its options with defaults; those of other components are ignored.

        Raises:
            UsageError: a value is invalid.
        """
        return dict(vars(chosen(self.options, options)))

    def run(self, *arguments: Any, options: Mapping[str, Scalar] | None = None) -> Any:
        """Call `apply`, with the resolved options as a last argument if the recipe declares any.

        Raises:
            ExtensionError: the recipe of another package raised an error, or returned something unexpected.
        """
        if options is not None and parameters(self.options):
            arguments = (*arguments, options)
        point, function = _provider(self), f"apply of {self.label}"
        with naming_plugin(partial(unusable, point), function) if point else nullcontext():
            result = self.apply(*arguments)
        check = _RETURNS.get(self.backend)
        if point and check and (problem := check.problem(function, result)):
            raise unusable(point, problem)
        return result

    @property
    def option_types(self) -> tuple[type, ...]:
        """The option classes that it accepts; if calibrated, also that of the calibration text."""
        return (self.options, CalibrationText) if self.calibrated else (self.options,)


def _are_facts(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))


_RETURNS = {
    "torch": ReturnCheck(_are_facts, "a mapping of facts to track, or None: it changes the model in place"),
    "onnx": instance_of("a Built", Built),
    "genai": instance_of("a list of the tool's arguments", list, tuple),
    "openvino": instance_of("a list of the tool's arguments", list, tuple),
}
"""Checks of what `apply` returns, by backend."""


def _provider(recipe: Recipe) -> EntryPoint | None:
    """Return the entry point that provides a recipe, or None if it is built in."""
    for point in extensions(RECIPE_POINTS):
        provided = _extension(point)
        if not isinstance(provided, ExtensionError) and recipe in provided:
            return point
    return None


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return the built-in recipes and those of other packages (entry points of the group `llmtrack.recipes`).

    Recipes of a broken package are skipped; see `broken_recipes`.
    """
    # Labels must be unique: the first package with a name wins.
    return tuple({recipe.label: recipe for recipe in reversed([*_available()])}.values())[::-1]


def broken_recipes() -> tuple[ExtensionError, ...]:
    """Return the errors of other packages whose recipes cannot be used."""
    loaded = map(_extension, extensions(RECIPE_POINTS))
    return tuple(error for error in loaded if isinstance(error, ExtensionError))


def _builtin() -> Iterator[Recipe]:
    for module in BUILTIN:
        yield from import_module(module).RECIPES


def _available() -> Iterator[Recipe]:
    yield from _builtin()
    for point in extensions(RECIPE_POINTS):
        provided = _extension(point)
        yield from () if isinstance(provided, ExtensionError) else provided


def _extension(point: EntryPoint) -> tuple[Recipe, ...] | ExtensionError:
    try:
        return extension_recipes(point)
    except ExtensionError as error:
        return error


def extension_recipes(point: EntryPoint) -> tuple[Recipe, ...]:
    """Load the recipes of an entry point.

    Raises:
        ExtensionError: it cannot be imported, or is not a sequence of recipes.
    """
    loaded = load_extension(point)
    provided = tuple(loaded) if isinstance(loaded, Iterable) else (loaded,)
    for recipe in provided:
        if not isinstance(recipe, Recipe):
            raise unusable(point, f"it must be a sequence of Recipe, and contains a {type(recipe).__name__}")
        if problem := why_unusable(recipe.options) or _unreachable_options(recipe):
            raise unusable(point, f"recipe {recipe.label}: {problem}")
        if recipe.label in {builtin.label for builtin in _builtin()}:
            raise unusable(point, f"{recipe.label} is the name of a built-in recipe")
    return provided


_ARGUMENTS = {"torch": 1, "llamacpp": 2}
"""Number of arguments of `apply` before the options, by backend: a model, or two files."""
_UNCALIBRATED = frozenset({*_ARGUMENTS, "genai", "openvino"})


def _unreachable_options(recipe: Recipe) -> str:
    """Describe declared options that would never reach the recipe; empty if there are none."""
    if recipe.calibrated and recipe.backend in _UNCALIBRATED:
        return (
            f"the {recipe.backend} backend does not read calibration text, only onnx and backends of other packages do"
        )
    arguments = [None] * _ARGUMENTS.get(recipe.backend, 0)
    if not arguments or not (declared := parameters(recipe.options)):
        return ""
    try:
        signature = inspect.signature(recipe.apply)
    except (TypeError, ValueError):  # a callable without a signature
        return ""
    try:
        signature.bind(*arguments, {})
    except TypeError:
        names = ", ".join(parameter.name for parameter in declared)
        return f"apply takes no options, and it declares {names}: give it a further argument, a mapping of them"
    return ""


def find_recipe(backend: str, name: str) -> Recipe:
    """Look up a recipe by backend and name.

    Raises:
        UsageError: there is none.
    """
    for recipe in recipes():
        if (recipe.backend, recipe.name) == (backend, name):
            return recipe
    known = [recipe.name for recipe in recipes() if recipe.backend == backend]
    close = get_close_matches(name, known, n=2) or [other for other in known if name and other.startswith(name)]
    labels = [f"{backend}/{other}" for other in close] or labels_of(name)
    hint = f" (did you mean {' or '.join(labels)}?)" if labels else ""
    broken = "".join(f"; {error}" for error in broken_recipes())
    raise UsageError(
        f"the {backend} backend has no quantization {name!r}{hint}: use {', '.join(['none', *known])}{broken}"
    )


def labels_of(name: str) -> list[str]:
    """Return the labels of the recipes with a name, over all backends."""
    return [recipe.label for recipe in recipes() if recipe.name == name]
