"""One file per entry point of `MLproject`: its parameters, the question, the scenarios, the plots, the reading."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from itertools import combinations
from typing import TYPE_CHECKING, Any

from llmtrack.host.signals import interrupt_in_a_line
from llmtrack.worker.bytecode import keep_bytecode

if TYPE_CHECKING:
    from llmtrack.experiment import Declaration

# As long as Python looks for the module that `python -m` is to run.
if sys.argv[:1] == ["-m"]:
    interrupt_in_a_line()
    keep_bytecode()


def declarations() -> dict[str, Declaration[Any]]:
    """Return what the files here declare, by name, in the order in which the suite runs it.

    Raises:
        ValueError: two of them have one place in the suite, or one name.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name != "suite"]
    declared = [module.DECLARED for module in modules if hasattr(module, "DECLARED")]
    declared.sort(key=lambda each: (each.position is None, each.position, each.name))
    for what in ("position", "name"):
        for one, other in combinations(declared, 2):
            if (value := getattr(one, what)) is not None and value == getattr(other, what):
                raise ValueError(
                    f"the experiments {one.name} and {other.name} both declare {what}={value!r}: give each its own"
                )
    return {each.name: each for each in declared}
