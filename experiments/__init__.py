"""One module per entry point of `MLproject`: its parameters, question, scenarios, plots and reading."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from itertools import combinations
from typing import TYPE_CHECKING, Any

from llmtrack.host.signals import print_interrupt_in_one_line
from llmtrack.worker.bytecode import cache_bytecode

if TYPE_CHECKING:
    from llmtrack.experiment import Declaration

# While Python resolves the module for `python -m`.
if sys.argv[:1] == ["-m"]:
    print_interrupt_in_one_line()
    cache_bytecode()


def declarations() -> dict[str, Declaration[Any]]:
    """Return the experiments declared here by name, in the order of the suite.

    Raises:
        ValueError: two of them have the same position in the suite, or the same name.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name != "suite"]
    declared = [module.DECLARED for module in modules if hasattr(module, "DECLARED")]
    declared.sort(key=lambda experiment: (experiment.position is None, experiment.position, experiment.name))
    for field in ("position", "name"):
        for first, second in combinations(declared, 2):
            if (value := getattr(first, field)) is not None and value == getattr(second, field):
                raise ValueError(
                    f"the experiments {first.name} and {second.name} both declare {field}={value!r}: give each its own"
                )
    return {experiment.name: experiment for experiment in declared}
