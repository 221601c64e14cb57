"""Describe where a measurement ran: git commit, versions, CPU and memory, and the id of what affects speed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from llmtrack import metrics as schema
from llmtrack.host.formatting import GIB
from llmtrack.host.machine import cpu_flags, cpu_model, usable_cpus
from llmtrack.host.packages import installed_version
from llmtrack.spec.serialization import digest
from llmtrack.version import FOLDER, __version__

# Instruction sets that determine the kernels of inference libraries.
INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile",
    "amx_int8", "amx_bf16", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip

# Facts that identify code and machine but do not affect speed.
NOT_SPEED = frozenset(
    {
        "git_branch",
        "git_commit",
        "git_dirty",
        "gpu_uuids",
        "llmtrack_version",
        "llmtrack_git_commit",
        "llmtrack_git_dirty",
        "mlflow_version",
        "node",
        "os",
        "unused_devices",
    }
)

# CI servers check out a commit without a branch and name the branch here, for pull requests and pushes.
_BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "BRANCH_NAME")

_GIT_TIMEOUT_S = 10


def environment(worker_facts: Mapping[str, str] | None = None, model_folders: Sequence[Path] = ()) -> dict[str, str]:
    """Describe this machine and code, merged with the worker's facts (torch, threads, GPU); unknown facts are left out.

    Args:
        worker_facts: include the machine if it is another one.
        model_folders: where the user's repository is looked for, too.
    """
    # The CI server's branch is that of the user's repository.
    llmtrack = {f"llmtrack_{key}": value for key, value in _git((FOLDER,)).items() if key != "git_branch"}
    worker = {key: str(value) for key, value in (worker_facts or {}).items()}
    # A remote worker describes its own machine; do not mix in facts of this one.
    machine = {} if "machine" in worker else machine_facts()
    return {**machine, **_git(_user_folders(model_folders)), **llmtrack, **worker}


def environment_id(facts: Mapping[str, str]) -> str:
    """Digest the facts that affect speed: hardware, versions, threads; not the git commit."""
    return digest({key: str(value) for key, value in facts.items() if key not in NOT_SPEED})


def environment_tags(facts: Mapping[str, str]) -> dict[str, str]:
    """Convert facts to tags, with the environment id and the tags that MLflow shows as a version."""
    tags = {schema.ENV_TAG_PREFIX + key: str(value) for key, value in facts.items()}
    tags["llmtrack.environment_id"] = environment_id(facts)
    tags["llmtrack.version"] = __version__
    if "git_commit" in facts:
        tags["mlflow.source.git.commit"] = facts["git_commit"]
    if "git_branch" in facts:
        tags["mlflow.source.git.branch"] = facts["git_branch"]
    return tags


@cache
def machine_facts() -> dict[str, str]:
    """Describe this machine and its versions; unknown facts are left out."""
    import psutil

    # All Arm CPUs of macOS support it without reporting it.
    flags = {"asimd"} if platform.system() == "Darwin" and platform.machine() == "arm64" else cpu_flags()
    memory_gib = psutil.virtual_memory().total / GIB
    facts = {
        "llmtrack_version": __version__,
        "mlflow_version": installed_version("mlflow"),
        "python_version": platform.python_version(),
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_instruction_sets": " ".join(name for name in INSTRUCTION_SETS if name in flags),
        "cpu_cores": str(psutil.cpu_count(logical=False) or ""),
        "cpu_threads": str(psutil.cpu_count() or ""),
        "cpu_available": str(usable_cpus()),
        "memory_gib": f"{memory_gib:.1f}",
    }
    return {key: value for key, value in facts.items() if value}


@cache
def _git(folders: tuple[Path, ...]) -> dict[str, str]:
    """Describe the first folder in a repository by commit, branch and dirty state; empty without git."""
    for folder in folders:
        # A virtual environment within a repository is not that repository's code.
        if _run_git(folder, "check-ignore", "--quiet", ".") is not None:
            continue
        commit = _run_git(folder, "rev-parse", "HEAD")
        if commit:
            dirty = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
            branch = _run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD")
            branch = branch or next(filter(None, map(os.environ.get, _BRANCH_VARIABLES)), "")
            return {
                "git_commit": commit,
                **({"git_branch": branch} if branch else {}),
                **({} if dirty is None else {"git_dirty": str(bool(dirty)).lower()}),
            }
    return {}


def _user_folders(model_folders: Sequence[Path]) -> tuple[Path, ...]:
    """List where the user's repository may be: working folder, models, program.

    MLflow starts a project in the project's own folder, so llmtrack's own repository comes last.
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path.cwd(), *model_folders, *([Path(program).absolute().parent] if program else [])]
    existing = dict.fromkeys(folder if folder.is_dir() else folder.parent for folder in folders)
    llmtrack = _repository(FOLDER)
    return tuple(sorted(existing, key=lambda folder: llmtrack != "" and _repository(folder) == llmtrack))


@cache
def _repository(folder: Path) -> str:
    return _run_git(folder, "rev-parse", "--show-toplevel") or ""


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        # Locks could disturb the user's git commands.
        process = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
