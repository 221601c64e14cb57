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
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and "import " in text.value:
                try:
                    program = ast.parse(text.value)
                except SyntaxError:
                    continue
                imports = [node for node in ast.walk(program) if isinstance(node, ast.ImportFrom)]
                imports = [node for node in imports if node.module and node.module.partition(".")[0] in OWN]
                if imports:
                    yield pytest.param(imports, id=f"{Path(path).relative_to(ROOT)}:{text.lineno}")


@pytest.mark.parametrize("imports", scripts())
def test_every_import_of_a_script_exists(imports):
    for node in imports:
        module = importlib.import_module(node.module)
        for name in node.names:
            assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), f"{node.module}.{name.name}"
