"""Quantization recipes as data, and their registry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
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
        options: the recipe's options, defaults included.
        rows: calibration text as rows of token ids; empty if the recipe needs none.
    """

    source: Path
    target: Path
    options: Mapping[str, Scalar]
    rows: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Built:
    """The findings of a recipe.

    Attributes:
        facts: tracked as params.
        ranking: a row per linear layer, worst first, if layers were ranked: name, error, and whether it stayed in
            float.
        attempts: the steps of the search for the number of layers to leave in float.
    """

    facts: Mapping[str, Scalar] = field(default_factory=dict)
    ranking: tuple[Mapping[str, Any], ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()


def anything(options: Mapping[str, Scalar]) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Recipe:
    """A way to quantize a model after training.

    Attributes:
        name: as `--recipes` takes it after the backend and a slash.
        backend: name of the engine that runs the result.
        quantizes: what it quantizes, in words.
        dtype: label of what the quantized weights are stored as.
        apply: does it: of the onnx backend a function of a `Job` that returns a `Built`, of the torch backend one that
            changes a model in place and may return facts to track, of the llamacpp backend one of a GGUF file in F16 and the
            file to write, of a backend that converts by a tool of its own one that turns options into arguments of the tool.
            Of torch and llamacpp, where the recipe declares options, they are a further argument.
        options: what it can be told: a frozen dataclass, each field with an `Option` (see `llmtrack.options`).
        calibrated: whether it needs a calibration text.
        depends_on_batch: whether what is computed for a row depends on the other rows and pads of its batch.
        rounds_activations: whether activations are rounded in each call, which turns a difference in the last bit into a step of
            that rounding.
        version: raised when the result changes, so that cached results are made anew.
        computes: dtype of what is not quantized, unless another is asked for.
        arithmetic: what its matrix products are computed in, as in `EngineInfo`; empty: in that dtype.
        capability: compute capability that a GPU must have for it; None: it runs on a CPU, too.
        needs: modules beside the backend's own without which it cannot be applied.
        check: refuses, before a model is loaded for it, what it cannot do here with these options (a `ScenarioError`).
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
    check: Callable[[Mapping[str, Scalar]], object] = anything

    @property
    def lacking(self) -> list[str]:
        """Modules that are missing for it."""
        return [*missing_modules(self.backend), *not_installed(self.needs)]

    @property
    def bits(self) -> int:
        """Bits of a stored weight by the dtype's label; 0: unknown."""
        found = re.search(r"\d+", self.dtype)
        return int(found[0]) if found else 0

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

    def settled(self, given: Sequence[tuple[str, Scalar]]) -> dict[str, Scalar]:
        """Return the options with defaults; options of other components are ignored.

        Raises:
            UsageError: a value is not accepted.
        """
        return dict(vars(chosen(self.options, given)))

    def applied(self, *to: Any, options: Mapping[str, Scalar] | None = None) -> Any:
        """Call `apply`, with the settled options if some are given and the recipe declares any.

        Raises:
            ExtensionError: the recipe of another package raised an error, or returned something else than expected.
        """
        if options is not None and parameters(self.options):
            to = (*to, options)
        point, called = _provider(self), f"apply of {self.label}"
        with naming_plugin(point, called) if point else nullcontext():
            gave = self.apply(*to)
        expected = _RETURNED.get(self.backend)
        if point and expected and (why := expected.problem(called, gave)):
            raise unusable(point, why)
        return gave

    @property
    def takes(self) -> tuple[type, ...]:
        """The option classes that it accepts; a calibrated recipe also accepts the calibration text."""
        return (self.options, CalibrationText) if self.calibrated else (self.options,)


def _are_facts(gave: Any) -> bool:
    return gave is None or (isinstance(gave, Mapping) and all(isinstance(name, str) for name in gave))


_RETURNED = {
    "torch": ReturnCheck(_are_facts, "a mapping of facts to track, or None: it changes the model in place"),
    "onnx": instance_of("a Built", Built),
    "genai": instance_of("a list of the tool's arguments", list, tuple),
    "openvino": instance_of("a list of the tool's arguments", list, tuple),
}
"""What `apply` returns, by backend."""


def _provider(recipe: Recipe) -> EntryPoint | None:
    """Return the entry point that provides a recipe, or None if it is built in."""
    for point in extensions(RECIPE_POINTS):
        found = _extension(point)
        if not isinstance(found, ExtensionError) and recipe in found:
            return point
    return None


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return the built-in recipes and those of other packages (entry points of the group `llmtrack.recipes`).

    Recipes of a broken package are skipped; see `broken_recipes`.
    """
    # Labels must be unique: the first package with a name wins.
    return tuple({each.label: each for each in reversed([*_found()])}.values())[::-1]


def broken_recipes() -> tuple[ExtensionError, ...]:
    """Return the errors of other packages whose recipes cannot be used."""
    return tuple(found for found in map(_extension, extensions(RECIPE_POINTS)) if isinstance(found, ExtensionError))


def _builtin() -> Iterator[Recipe]:
    for module in BUILTIN:
        yield from import_module(module).RECIPES


def _found() -> Iterator[Recipe]:
    yield from _builtin()
    for point in extensions(RECIPE_POINTS):
        found = _extension(point)
        yield from () if isinstance(found, ExtensionError) else found


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
    named = load_extension(point)
    found = tuple(named) if isinstance(named, Iterable) else (named,)
    for each in found:
        if not isinstance(each, Recipe):
            raise unusable(point, f"it must be a sequence of Recipe, and contains a {type(each).__name__}")
        if why := why_unusable(each.options):
            raise unusable(point, f"recipe {each.label}: {why}")
        if why := _unheard(each):
            raise unusable(point, f"recipe {each.label}: {why}")
        if each.label in {own.label for own in _builtin()}:
            raise unusable(point, f"{each.label} is the name of a built-in recipe")
    return found


_WORKED_ON = {"torch": 1, "llamacpp": 2}
"""Positional arguments of `apply` before the options, by backend: a model, or two files."""
_UNCALIBRATED = frozenset({*_WORKED_ON, "genai", "openvino"})


def _unheard(recipe: Recipe) -> str:
    """Describe declared options that would never reach the recipe; empty if there are none."""
    if recipe.calibrated and recipe.backend in _UNCALIBRATED:
        return (
            f"the {recipe.backend} backend does not read calibration text, only onnx and backends of other packages do"
        )
    to = [None] * _WORKED_ON.get(recipe.backend, 0)
    if not to or not (declared := parameters(recipe.options)):
        return ""
    try:
        signature = inspect.signature(recipe.apply)
    except (TypeError, ValueError):  # a callable without a signature
        return ""
    try:
        signature.bind(*to, {})
    except TypeError:
        names = ", ".join(each.name for each in declared)
        return f"apply takes no options, and it declares {names}: give it a further argument, a mapping of them"
    return ""


def find_recipe(backend: str, name: str) -> Recipe:
    """Return a recipe by backend and name.

    Raises:
        UsageError: there is none.
    """
    for recipe in recipes():
        if (recipe.backend, recipe.name) == (backend, name):
            return recipe
    known = [recipe.name for recipe in recipes() if recipe.backend == backend]
    alike = get_close_matches(name, known, n=2) or [each for each in known if name and each.startswith(name)]
    near = [f"{backend}/{each}" for each in alike] or labels_of(name)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    unread = "".join(f"; {error}" for error in broken_recipes())
    raise UsageError(
        f"the {backend} backend has no quantization {name!r}{hint}: use {', '.join(['none', *known])}{unread}"
    )


def labels_of(name: str) -> list[str]:
    """Return the labels of the recipes with a name, over all backends."""
    return [recipe.label for recipe in recipes() if recipe.name == name]
