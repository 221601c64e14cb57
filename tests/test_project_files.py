"""The project's own files agree with one another: dependencies, commands, folders."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]


def names(requirements):
    return {Requirement(text).name.lower() for text in requirements}


def test_the_conda_environment_lists_the_requirements_of_llmtrack_and_its_onnx_extra():
    conda = yaml.safe_load((ROOT / "conda.yaml").read_text(encoding="utf-8"))
    (listed,) = (entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    required = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["onnx"])
    assert names(line for line in listed if not line.startswith("-")) == required


def test_every_dependency_is_imported():
    # transformers imports these itself: accelerate to read a GGUF file, safetensors for every checkpoint.
    indirect = {"accelerate", "safetensors"}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "llmtrack").rglob("*.py"))
    for name in names(PROJECT["dependencies"]) - indirect:
        assert re.search(rf"(?:import|from) {name}\b", sources), f"{name} is never imported"


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_existing_targets_and_scripts(workflow):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"].split() for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        if command[0] == "make":
            assert command[1] in targets
        else:
            assert command[0] == "bash"
            assert (ROOT / command[1]).is_file()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("optimized", "complete", "chosen"),
    [(True, True, "python3"), (False, True, "system-python"), (False, False, "python3")],
)
def test_make_prefers_the_systems_python_to_one_without_optimizations(tmp_path, optimized, complete, chosen):
    for name, suits in (("python3", optimized), ("system-python", complete)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(not suits)}\n")
        (tmp_path / name).chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SYSTEM_PYTHON": "system-python"}
    show = ["make", "--silent", "--eval=show:; @echo $(PYTHON)", "show"]
    output = subprocess.run(show, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.split() == [chosen]


def test_the_pre_commit_hook_has_the_pinned_version_of_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (ruff,) = (hook["rev"] for hook in hooks if hook["repo"].endswith("/ruff-pre-commit"))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ruff=={ruff.removeprefix('v')}" in pinned


def test_every_folder_of_modules_is_a_package_and_thus_in_the_wheel():
    folders = {path.parent for path in (ROOT / "llmtrack").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_every_folder_is_in_the_architecture_and_tests_mirror_folders():
    rooms = {path.parent.name for path in (ROOT / "llmtrack").glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert {room for room in rooms if f"{room}/" not in page} == set()
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    others = {path.name for path in ROOT.iterdir() if path.is_dir()}  # experiments, docs, benchmarks
    assert tested - rooms - others == {"browser", "e2e"}


def test_no_module_imports_the_package_itself():
    rooms = [path for path in (ROOT / "llmtrack").rglob("*.py") if path.parent.name != "llmtrack"]
    assert [path for path in rooms if re.search(r"^import llmtrack$", path.read_text("utf-8"), re.M)] == []


def test_no_test_wrote_a_file_named_by_an_option_into_the_checkout():
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert {name for name in files if not re.search("[A-Za-z]{5}", name)} <= {".git"}


@pytest.mark.slow(1)
def test_tests_are_collected_without_optional_packages():
    optional = {
        "llama_cpp",
        "onnx",
        "onnxruntime",
        "onnxruntime_genai",
        "openvino",
        "optimum",
        "playwright",
        "ray",
        "torchao",
    }
    imports_optional = re.compile(rf"^(?:import|from) (?:{'|'.join(sorted(optional))})\b", re.MULTILINE)
    unguarded = set()
    helper = ROOT / "tests" / "onnx" / "small.py"  # imported by modules that skip themselves first
    for path in {*(ROOT / "tests").rglob("*.py")} - {helper}:
        text = path.read_text(encoding="utf-8")
        # Parsing all tests takes a second.
        for statement in ast.parse(text).body if imports_optional.search(text) else ():
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                first = statement.names[0].name if isinstance(statement, ast.Import) else statement.module or ""
                before = text.splitlines()[: statement.lineno]
                if first.split(".")[0] in optional and not any("importorskip" in line for line in before):
                    unguarded.add(f"{path.relative_to(ROOT)}: {first}")
    assert unguarded == set()
