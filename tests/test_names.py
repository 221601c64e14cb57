"""A name that one module takes from another means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# How each of them is converted is said under one name by those that converters are.
ALIKE = {"CONVERTER"}


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


@pytest.mark.slow(2)
def test_no_name_is_taken_from_two_modules_that_define_it():
    homes, taken = defaultdict(set), set()
    for path in (ROOT / "llmtrack").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in defined(tree):
            homes[name].add(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                taken |= {(node.module, each.name) for each in node.names}
    twice = {name: sorted(each for each in of if (each, name) in taken) for name, of in homes.items()}
    assert {name: of for name, of in twice.items() if len(of) > 1 and name not in ALIKE} == {}
