"""Find plug-ins by their entry points, and experiments by name; explain in one line why one cannot be used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from llmtrack.errors import ExtensionError, in_words
from llmtrack.version import FOLDER

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
    """Return the entry points of a group without importing them; duplicates count once."""
    return tuple({(point.name, point.value): point for point in entry_points(group=group)}.values())


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
        raise broken(point, f"{type(error).__name__}: {in_words(error)}") from error


def title_of(point: EntryPoint) -> str:
    """Return the kind and name of an entry point for messages."""
    return f"{_NOUNS[point.group]} {point.name}"


def broken(point: EntryPoint, why: str) -> ExtensionError:
    """Return the error for an unusable entry point, naming its package and the reason."""
    dist = getattr(point, "dist", None)
    package = f" of the package {dist.name} {dist.version}" if dist else ""
    return ExtensionError(
        f"{title_of(point)} ({point.value}{package}) cannot be used: {why.rstrip('.')}. Mend, update or uninstall that "
        "package, or use another one: see llmtrack doctor"
    )


def named_experiment(name: str) -> ModuleType | None:
    """Return the module of an experiment, or None if there is none of that name.

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
    for point in extensions(EXPERIMENT_POINTS):
        if point.name == name:
            return experiment_of(point)
    return None


def experiment_of(point: EntryPoint) -> ModuleType:
    """Load the experiment module of another package.

    Raises:
        ExtensionError: it cannot be used.
    """
    module = load_extension(point)
    for needed in ("DECLARED", "main"):
        if not isinstance(module, ModuleType) or not hasattr(module, needed):
            raise broken(point, f"it is no module with {needed}")
    if module.DECLARED.name != point.name:
        raise broken(point, f"it declares an experiment of another name, {module.DECLARED.name}")
    return module
