"""Engines are found by name, with and without an installation."""

from __future__ import annotations

import pytest

from llmtrack.engines import registry
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.host import entry_points
from llmtrack.spec.scenario import Variant


def test_the_built_in_backend_needs_no_installation(monkeypatch):
    # `mlflow run --env-manager uv` starts the project from its folder, in an environment that lacks its metadata.
    monkeypatch.setattr(entry_points, "_points", lambda group, folders: ())
    assert registry.backends() == sorted(registry.BUILTIN)
    engine = registry.load_variant(Variant("synthetic:tiny", device="cpu"))
    assert engine.info.model_id == "synthetic:tiny"


def test_a_backend_of_another_package_is_found_by_its_entry_point(monkeypatch):
    engine = ScriptedEngine(FakeClock(), Script(1.0, 0.1))

    class Point:
        group, name, value = entry_points.ENGINE_POINTS, "theirs", "theirs:load"

        def load(self):
            return lambda variant: engine if variant.model == "a-model" else None

    monkeypatch.setattr(entry_points, "_points", lambda group, folders: (Point(), Point()))
    assert registry.backends() == sorted([*registry.BUILTIN, "theirs"])
    assert registry.load_variant(Variant("a-model", backend="theirs")) is engine


def test_an_unknown_backend_is_reported_with_the_available_ones():
    with pytest.raises(UsageError, match=r"unknown backend 'abacus': there are .*torch"):
        registry.load_variant(Variant(backend="abacus"))
