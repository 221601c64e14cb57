"""One file per entry point of `MLproject`: its parameters, the question, the scenarios, the plots, the reading."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmtrack.experiment import Declaration


def declarations() -> dict[str, Declaration[Any]]:
    """Return what the files here declare, by name, in the order in which the suite runs it."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name != "suite"]
    declared = [module.DECLARED for module in modules if hasattr(module, "DECLARED")]
    declared.sort(key=lambda each: (each.position is None, each.position, each.name))
    return {each.name: each for each in declared}
