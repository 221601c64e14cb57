"""Every command and Python block in the documents is run, with the substitutions of substitutions.py."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtrack.engine import Engine
from llmtrack.engines import registry
from llmtrack.errors import MissingDependencyError
from llmtrack.quality import corpora
from llmtrack.spec.scenario import Variant
from tests.conftest import draw_nothing, hide_load, made_once, make_here
from tests.docs import runner
from tests.docs.blocks import Block, blocks, commands
from tests.docs.substitutions import CODE, FILES, REAL_MODEL

pytestmark = pytest.mark.slow(4)

BLOCKS = blocks()
SHELL = {"bash", "yaml"}
READ_ONLY = {"text", ""}
# What stands in several documents, or is the same but for what is substituted, is run once.
PLACES: dict[str, dict[str, list[str]]] = {}
for _block in BLOCKS:
    for _line in commands(_block) if _block.language in SHELL else ():
        PLACES.setdefault(runner.resolved(_line), {}).setdefault(_line, []).append(_block.place)
LINES = [
    pytest.param(
        next(iter(lines)),
        id="; ".join(f"{', '.join(dict.fromkeys(places))} {line}" for line, places in lines.items()),
    )
    for lines in PLACES.values()
]


# What the reader has run, a suite last. The same lines in documents are not run again.
EARLIER = (
    "mlflow run . -e prompt_length --env-manager local",
    "mlflow run . -e suite --env-manager local -P quick=true",
)


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory, template_database: Path) -> Path:
    """Create the working directory of a reader who has run some experiments: a store and files."""

    def measure(folder: Path) -> None:
        shutil.copyfile(template_database, folder / "mlflow.db")
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            hide_load(patch, tmp_path_factory)
            work_in(folder, patch)
            for line in EARLIER:
                runner.run(line)

    return made_once(tmp_path_factory, "reader", measure)


def work_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let commands read and write here, draw nothing, and score less."""
    for name in list(os.environ):
        if name.startswith("MLFLOW_") or name == "LLMTRACK_SPOOL":
            patch.delenv(name)
    patch.setenv("LLMTRACK_SPOOL", str(folder / "spool"))
    patch.chdir(folder)
    make_here(patch)
    draw_nothing(patch)
    patch.setitem(corpora._NAMED, corpora.BUILTIN_TEXT, lambda: corpora._builtin()[:2])


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[Variant, Engine]]:
    """Engines of the real model, which takes seconds to load and several documents load."""
    loaded: dict[Variant, Engine] = {}
    yield loaded
    for engine in loaded.values():
        type(engine).close(engine)


@pytest.fixture(autouse=True)
def _in_it(reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: dict[Variant, Engine]) -> None:
    load = registry.load_variant

    def load_once(variant: Variant) -> Engine:
        if (variant.model, variant.backend) != ("packaged:smollm2", "torch"):
            return load(variant)
        if variant not in engines:
            engines[variant] = load(variant)
            engines[variant].close = lambda: None
        return engines[variant]

    monkeypatch.setattr(registry, "load_variant", load_once)
    for name in ("mlflow.db", *FILES):
        shutil.copyfile(reader / name, tmp_path / name)
    work_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_runs(line: str, request: pytest.FixtureRequest):
    if "packaged:smollm2" in runner.resolved(line):
        request.getfixturevalue("smollm2_spec")
    if runner.resolved(line) not in map(runner.resolved, EARLIER):
        runner.run(line)


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in BLOCKS if block.language == "python"]
)
def test_documented_python_runs(block: Block, request: pytest.FixtureRequest):
    text = block.text
    if REAL_MODEL in text:
        request.getfixturevalue("smollm2_spec")
    for documented, used in CODE.items() if REAL_MODEL not in text else ():
        text = text.replace(documented, used)
    namespace: dict[str, object] = {}
    try:
        exec(compile(ast.parse(text), block.place, "exec"), namespace)
    except MissingDependencyError as missing:
        if runner.NEEDS_ONNX in str(missing):
            runner.skip_without_onnx()
        raise


def test_every_block_has_a_known_language():
    assert {block.language for block in BLOCKS} <= SHELL | READ_ONLY | {"python"}
    assert len(LINES) > 20


def test_the_steps_of_a_workflow_are_commands():
    steps = "jobs:\n  gate:\n    steps:\n      - uses: x\n      - run: |\n          llmtrack doctor  # first\n          llmtrack compare --baseline latest#a\n          llmtrack \\\n            sync\n"
    assert commands(Block("x", "yaml", steps)) == [
        "llmtrack doctor",
        "llmtrack compare --baseline 'latest#a'",
        "llmtrack sync",
    ]


@pytest.mark.parametrize("line", ["curl https://example.org", "mlflow run . -e nothing", "llmtrack compare --nothing"])
def test_a_failing_command_is_noticed(line: str):
    with pytest.raises((AssertionError, KeyError)):
        runner.run(line)
