"""Find plug-ins by their entry points, and experiments by name; explain in one line why one cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from llmtrack.errors import ExtensionError, LlmtrackError, in_words, is_out_of_memory
from llmtrack.host.formatting import described
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


@dataclass(frozen=True)
class Answer:
    """What a function of a plug-in must return.

    Attributes:
        holds: whether a value is one.
        words: description of it, with an article.
    """

    holds: Callable[[Any], bool]
    words: str

    def why_not(self, function: str, gave: Any) -> str:
        """Return why a returned value is none; empty if it is one."""
        return "" if self.holds(gave) else f"{function} returned {described(gave)}, and not {self.words}"


def answer(words: str, *kinds: type) -> Answer:
    """Return the answer of these types."""
    return Answer(lambda gave: isinstance(gave, kinds), words)


@contextmanager
def named_in_errors(point: EntryPoint, function: str) -> Iterator[None]:
    """Name a plug-in in the errors of its function, except its own messages to the user and exhausted memory.

    Raises:
        ExtensionError: the function raised another error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, LlmtrackError) or is_out_of_memory(error):
            raise
        raise broken(point, f"{function} raised {type(error).__name__}: {in_words(error)}") from error


def check_answers(made: Any, point: EntryPoint, expected: Mapping[str, Answer]) -> None:
    """Make an object's methods name the plug-in if they return something else than expected.

    They are replaced on the object itself, which thus keeps its type and all else; one that allows no change stays.
    """
    for name, answer in expected.items():
        with suppress(AttributeError, TypeError):
            setattr(made, name, _checked(getattr(made, name), name, point, answer))


def _checked(method: Callable[..., Any], name: str, point: EntryPoint, expected: Answer) -> Callable[..., Any]:
    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        gave = method(*given, **named)
        if why := expected.why_not(name, gave):
            raise broken(point, why)
        return gave

    return call


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
    for own, needed in (("DECLARED", "experiment"), ("main", "__call__")):
        if not callable(getattr(getattr(module, own), needed, None)):
            what = "a Declaration" if own == "DECLARED" else "command(DECLARED)"
            raise broken(point, f"its {own} is {described(getattr(module, own))}, and not {what}")
    if module.DECLARED.name != point.name:
        raise broken(point, f"it declares an experiment of another name, {module.DECLARED.name}")
    return module
