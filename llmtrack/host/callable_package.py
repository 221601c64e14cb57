"""Make packages callable: `llmtrack.run(...)` beside `llmtrack.run.main`."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


def callable_package(name: str, home: str, function: str) -> None:
    """Make a package callable as one of its functions, imported on first call.

    Args:
        name: name of the package.
        home: module of the function.
    """

    class Callable(ModuleType):
        def __call__(self, *given: Any, **named: Any) -> Any:
            return getattr(import_module(home), function)(*given, **named)

        @property
        def __signature__(self) -> Signature:
            return signature(getattr(import_module(home), function))

    sys.modules[name].__class__ = Callable
