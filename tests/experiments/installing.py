"""Say what is installed, to whatever asks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from llmtrack.quantize.recipe import Recipe


def pretend(patch: pytest.MonkeyPatch, module: ModuleType, there: Callable[[str, str], bool]) -> None:
    """Let an experiment find a backend, and a recipe of it (`none`: the backend alone), where `there` says so."""
    patch.setattr(module, "available", lambda backend, recipe="none": there(backend, recipe))
    patch.setattr(Recipe, "lacking", property(lambda each: [] if there(each.backend, each.name) else ["it"]))
