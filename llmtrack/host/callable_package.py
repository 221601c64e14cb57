"""Packages that are called by their own name: `llmtrack.run(...)` beside `llmtrack.run.study.study`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from inspect import Signature, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from llmtrack.host.entry_points import EXPERIMENT_POINTS, broken, extensions, load_extension
from llmtrack.version import FOLDER

EXPERIMENTS = "experiments"


def callable_package(name: str, home: str, function: str) -> None:
    """Let a package be called as one of its functions, which is imported when it is called.

    Args:
        name: of the package.
        home: module of the function.
        function: its name.
    """

    class Callable(ModuleType):
        def __call__(self, *given: Any, **named: Any) -> Any:
            return getattr(import_module(home), function)(*given, **named)

        @property
        def __signature__(self) -> Signature:
            return signature(getattr(import_module(home), function))

    sys.modules[name].__class__ = Callable


def named_experiment(name: str) -> ModuleType | None:
    """Return the module of an experiment, or None if there is none of that name.

    It is looked for in the checkout that llmtrack is part of, in `experiments/` of the folder where the program was
    started, in the installed package (`llmtrack.experiments`), and among the entry points of other packages.

    Raises:
        ExtensionError: it is another package's, and cannot be used.
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
    """Return the module of another package's experiment.

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
