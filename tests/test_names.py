"""An imported name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each converter's module defines one.
ALLOWED = {"CONVERTER"}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements, also nested ones; not expressions, which are most of a module."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, []))


def defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


@pytest.mark.slow(2)
def test_no_name_is_imported_from_two_modules_that_define_it():
    homes, imported = defaultdict(set), set()
    for path in (ROOT / "llmtrack").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in defined(tree):
            homes[name].add(module)
        for node in statements(tree.body):
            if isinstance(node, ast.ImportFrom):
                imported |= {(node.module, alias.name) for alias in node.names}
    twice = {name: sorted(home for home in modules if (home, name) in imported) for name, modules in homes.items()}
    assert {name: modules for name, modules in twice.items() if len(modules) > 1 and name not in ALLOWED} == {}
