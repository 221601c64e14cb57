"""Find plug-ins by entry point and experiments by name; explain in one line why one is unusable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from llmtrack.errors import ExtensionError, LlmtrackError, in_words, is_out_of_memory
from llmtrack.host.formatting import type_name
from llmtrack.host.packages import import_folders
from llmtrack.version import FOLDER

T = TypeVar("T")

EXPERIMENTS = "experiments"

ENGINE_POINTS, RECIPE_POINTS = "llmtrack.engines", "llmtrack.recipes"
EXECUTOR_POINTS, EXPERIMENT_POINTS = "llmtrack.executors", "llmtrack.experiments"

_NOUNS = {
    ENGINE_POINTS: "backend",
    RECIPE_POINTS: "recipes",
    EXECUTOR_POINTS: "executor",
    EXPERIMENT_POINTS: "experiment",
}


def extensions(group: str) -> tuple[EntryPoint, ...]:
    """Return the distinct entry points of a group, without importing them."""
    return tuple({(point.name, point.value): point for point in _points(group, import_folders())}.values())


@lru_cache(maxsize=32)
def _points(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group, in hundreds of files: once until `import_folders` change."""
    return tuple(entry_points(group=group))


def find_extension(group: str, name: str) -> EntryPoint | None:
    """Return the entry point of a name in a group, or None."""
    return next((point for point in extensions(group) if point.name == name), None)


def names_of(group: str) -> tuple[str, ...]:
    """Return the entry point names of a group."""
    return tuple(point.name for point in extensions(group))


def load_extension(point: EntryPoint) -> Any:
    """Load the object of an entry point.

    Raises:
        ExtensionError: importing it fails in any way.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise unusable(point, f"{type(error).__name__}: {in_words(error)}") from error


def title_of(point: EntryPoint) -> str:
    """Return the kind and name of an entry point for messages."""
    return f"{_NOUNS[point.group]} {point.name}"


def unusable(point: EntryPoint, why: str) -> ExtensionError:
    """Return the error for an unusable entry point, naming its package and the reason."""
    dist = getattr(point, "dist", None)
    package = f" of the package {dist.name} {dist.version}" if dist else ""
    return ExtensionError(
        f"{title_of(point)} ({point.value}{package}) cannot be used: {why.rstrip('.')}. Fix, update or uninstall that "
        "package, or use another one: see llmtrack doctor"
    )


@dataclass(frozen=True)
class ReturnCheck:
    """A check of the value returned by a plug-in's function.

    Attributes:
        holds: whether a value passes.
        expected: what passes, with an article.
    """

    holds: Callable[[Any], bool]
    expected: str

    def problem(self, function: str, value: Any) -> str:
        """Describe a wrong return value; empty if it passes."""
        return "" if self.holds(value) else f"{function} returned {type_name(value)}, and not {self.expected}"


def instance_of(expected: str, *types: type) -> ReturnCheck:
    """Check that a returned value is of one of the types."""
    return ReturnCheck(lambda value: isinstance(value, types), expected)


@contextmanager
def naming_plugin(error_of: Callable[[str], ExtensionError], function: str) -> Iterator[None]:
    """Raise a plug-in's error, given the reason, for errors of its function, except messages to the user and exhausted
    memory.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, LlmtrackError) or is_out_of_memory(error):
            raise
        raise error_of(f"{function} raised {type(error).__name__}: {in_words(error)}") from error


def make_checked(
    point: EntryPoint,
    function: str,
    make: Callable[[], T],
    why_unusable: Callable[[Any], str],
    checks: Mapping[str, ReturnCheck],
) -> T:
    """Make a plug-in's object; name the plug-in in errors, and if a method later returns something else than expected.

    The methods are replaced on the object, which keeps its type; an immutable object stays unchecked.

    Args:
        function: name of the plug-in's function that `make` calls.
        why_unusable: describes what an object lacks; empty if nothing.
        checks: of what its methods return.

    Raises:
        ExtensionError: making it failed, or it is unusable.
    """
    with naming_plugin(partial(unusable, point), function):
        plugin = make()
    if reason := why_unusable(plugin):
        raise unusable(point, reason)
    for name, check in checks.items():
        with suppress(AttributeError, TypeError):
            setattr(plugin, name, _checked(getattr(plugin, name), name, point, check))
    return plugin


def _checked(method: Callable[..., Any], name: str, point: EntryPoint, check: ReturnCheck) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = method(*args, **kwargs)
        if problem := check.problem(name, value):
            raise unusable(point, problem)
        return value

    return call


def named_experiment(name: str) -> ModuleType | None:
    """Import an experiment by name; return None if there is none.

    Searches the checkout that llmtrack belongs to, `experiments/` in the working folder, the installed package
    (`llmtrack.experiments`), and entry points of other packages.

    Raises:
        ExtensionError: it belongs to another package and cannot be used.
    """
    for folder in (FOLDER.parent, Path.cwd()):
        if name.isidentifier() and (folder / EXPERIMENTS / f"{name}.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
            return import_module(f"{EXPERIMENTS}.{name}")
    installed = f"llmtrack.{EXPERIMENTS}"
    if name.isidentifier() and find_spec(installed) and find_spec(f"{installed}.{name}"):
        return import_module(f"{installed}.{name}")
    point = find_extension(EXPERIMENT_POINTS, name)
    return experiment_of(point) if point else None


def experiment_of(point: EntryPoint) -> ModuleType:
    """Load the experiment module of another package.

    Raises:
        ExtensionError: it cannot be used.
    """
    module = load_extension(point)
    for needed in ("DECLARED", "main"):
        if not isinstance(module, ModuleType) or not hasattr(module, needed):
            raise unusable(point, f"it is not a module with {needed}")
    for name, method, expected in (
        ("DECLARED", "experiment", "a Declaration"),
        ("main", "__call__", "command(DECLARED)"),
    ):
        value = getattr(module, name)
        if not callable(getattr(value, method, None)):
            raise unusable(point, f"its {name} is {type_name(value)}, and not {expected}")
    if module.DECLARED.name != point.name:
        raise unusable(point, f"it declares an experiment of another name, {module.DECLARED.name}")
    return module
