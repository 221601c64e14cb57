"""Programs that benchmarks hold as text import existing names, which no type checker verifies."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forking import ROOT

OWN = ("llmtrack", "experiments", "benchmarks", "tests")


def scripts():
    """Return the texts in benchmarks that are programs with imports of llmtrack, by location."""
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
                try:
                    program = ast.parse(node.value)
                except SyntaxError:
                    continue
                found = [each for each in ast.walk(program) if isinstance(each, ast.ImportFrom)]
                found = [each for each in found if each.module and each.module.partition(".")[0] in OWN]
                if found:
                    yield pytest.param(found, id=f"{Path(path).relative_to(ROOT)}:{node.lineno}")


@pytest.mark.parametrize("found", scripts())
def test_every_import_of_a_script_exists(found):
    for each in found:
        module = importlib.import_module(each.module)
        for name in each.names:
            assert hasattr(module, name.name) or find_spec(f"{each.module}.{name.name}"), f"{each.module}.{name.name}"
