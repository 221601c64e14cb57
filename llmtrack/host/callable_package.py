"""Make packages callable: `llmtrack.run(...)` beside `llmtrack.run.main`."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


def callable_package(name: str, home: str, function: str) -> None:
    """Make the package `name` callable as a function of the module `home`, imported on first call."""

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(home), function)(*args, **kwargs)

        @property
        def __signature__(self) -> Signature:
            return signature(getattr(import_module(home), function))

    sys.modules[name].__class__ = Callable
