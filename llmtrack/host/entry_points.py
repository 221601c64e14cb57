"""Engines, recipes, executors and experiments of other packages: found by their entry points, and named in one line where they cannot be used."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from llmtrack.errors import ExtensionError, in_words

ENGINE_POINTS, RECIPE_POINTS = "llmtrack.engines", "llmtrack.recipes"
EXECUTOR_POINTS, EXPERIMENT_POINTS = "llmtrack.executors", "llmtrack.experiments"

_NOUNS = {
    ENGINE_POINTS: "backend",
    RECIPE_POINTS: "recipes",
    EXECUTOR_POINTS: "executor",
    EXPERIMENT_POINTS: "experiment",
}


def extensions(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, those that are installed twice once; none of them is imported."""
    return tuple({(point.name, point.value): point for point in entry_points(group=group)}.values())


def names_of(group: str) -> tuple[str, ...]:
    """Return the names that other packages give in a group."""
    return tuple(point.name for point in extensions(group))


def load_extension(point: EntryPoint) -> Any:
    """Return the object that an entry point names.

    Raises:
        ExtensionError: it cannot be imported, whatever its package raises.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise broken(point, f"{type(error).__name__}: {in_words(error)}") from error


def title_of(point: EntryPoint) -> str:
    """Return what an entry point adds, in words."""
    return f"{_NOUNS[point.group]} {point.name}"


def broken(point: EntryPoint, why: str) -> ExtensionError:
    """Return the error that names an entry point that cannot be used, its package and the reason."""
    dist = getattr(point, "dist", None)
    package = f" of the package {dist.name} {dist.version}" if dist else ""
    return ExtensionError(
        f"{title_of(point)} ({point.value}{package}) cannot be used: {why.rstrip('.')}. Mend, update or uninstall that "
        "package, or use another one: see llmtrack doctor"
    )
