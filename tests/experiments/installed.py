"""Pretend that backends and recipes are installed or missing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from llmtrack.quantize.recipe import Recipe


def pretend(patch: pytest.MonkeyPatch, module: ModuleType, installed: Callable[[str, str], bool]) -> None:
    """Let an experiment find the backends and recipes (`none`: the backend alone) that `installed` accepts."""
    patch.setattr(module, "available", lambda backend, recipe="none": installed(backend, recipe))
    patch.setattr(Recipe, "lacking", property(lambda recipe: [] if installed(recipe.backend, recipe.name) else ["it"]))
