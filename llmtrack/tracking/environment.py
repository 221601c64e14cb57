"""Where a measurement ran: git commit, versions, processor and memory, and the id of what affects speed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from llmtrack import metrics as schema
from llmtrack.host.machine import cpu_flags, cpu_model, usable_cpus
from llmtrack.host.packages import installed_version
from llmtrack.host.units import GIB
from llmtrack.spec.serialization import digest
from llmtrack.version import FOLDER, __version__

# Instruction sets that decide which kernels an inference library picks.
INSTRUCTION_SETS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)

# These say which code or machine it was, but two machines that differ only in them are equally fast.
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

# A build server checks out a commit and no branch; these say which it was: of a pull request, then of a push.
_BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "BRANCH_NAME")

_GIT_TIMEOUT_S = 10


def environment(worker_facts: Mapping[str, str] | None = None, model_folders: Sequence[Path] = ()) -> dict[str, str]:
    """Return facts about this machine and code, with the worker's own (torch, threads, GPU) merged in.

    Never fails: what cannot be found out is left out.

    Args:
        worker_facts: what the worker says of itself, and of its machine where that is another one.
        model_folders: where the models lie: `git_branch` and its like are of the user's repository, which may be theirs.
    """
    # The branch that a build server names is the user's.
    own = {f"llmtrack_{key}": value for key, value in _git((FOLDER,)).items() if key != "git_branch"}
    worker = {key: str(value) for key, value in (worker_facts or {}).items()}
    # A worker elsewhere tells of its own machine; of this one nothing may be mixed in.
    here = {} if "machine" in worker else machine_facts()
    return {**here, **_git(_user_folders(model_folders)), **own, **worker}


def environment_id(facts: Mapping[str, str]) -> str:
    """Return the digest of the facts that affect speed: hardware, versions, threads; not the git commit."""
    return digest({key: str(value) for key, value in facts.items() if key not in NOT_SPEED})


def environment_tags(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts as tags, with the environment's id and the tag that MLflow shows as the version."""
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
    """Return facts about the machine and the versions here; what cannot be found out is left out."""
    import psutil

    # Every Arm CPU of macOS has it, and nobody says so there.
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
    """Return commit, branch and dirty state of the first folder that is in a repository, if git can tell."""
    for folder in folders:
        # A virtual environment inside somebody's repository is not that repository's code.
        if _run_git(folder, "check-ignore", "--quiet", ".") is not None:
            continue
        commit = _run_git(folder, "rev-parse", "HEAD")
        if commit:
            dirty = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
            branch = _branch(folder)
            return {
                "git_commit": commit,
                **({"git_branch": branch} if branch else {}),
                **({} if dirty is None else {"git_dirty": str(bool(dirty)).lower()}),
            }
    return {}


def _branch(folder: Path) -> str:
    """Return the branch that is checked out or, where a build server checked out none, the one it names."""
    branch = _run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD")
    return branch or next(filter(None, map(os.environ.get, _BRANCH_VARIABLES)), "")


def _user_folders(model_folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return where the user's repository may be: where the program was started, where the models lie, where it lies.

    MLflow starts a project in the project's own folder; so llmtrack's own repository comes last.
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path.cwd(), *model_folders, *([Path(program).absolute().parent] if program else [])]
    found = list(dict.fromkeys(folder if folder.is_dir() else folder.parent for folder in folders))
    own = _repository(FOLDER)
    return tuple(sorted(found, key=lambda folder: own != "" and _repository(folder) == own))


@cache
def _repository(folder: Path) -> str:
    """Return the root of the repository that a folder is in; empty if it is in none."""
    return _run_git(folder, "rev-parse", "--show-toplevel") or ""


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks a benchmark never disturbs a git command of the user.
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
