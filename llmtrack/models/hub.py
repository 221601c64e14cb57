"""Find a hub model in the local cache or download it, failing quickly without a network."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from llmtrack.errors import ModelLoadError
from llmtrack.models.cache import file_digest
from llmtrack.models.disk import room_for
from llmtrack.models.weights import listed_weights

REQUEST_SECONDS = 5.0
# Bounds what a request's own timeout does not: name resolution and retries.
RESOLVE_SECONDS = 8.0

_Result = TypeVar("_Result")

_SHA256 = re.compile(r"[0-9a-f]{64}")

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_TEXTS = (".json", ".txt", ".model", ".jinja")


def snapshot(repo: str, revision: str | None = None) -> tuple[Path, str]:
    """Return the local folder of a hub model and its commit.

    A cached model needs no network. Otherwise the revision (a branch, tag or commit; by default the default branch) is
    resolved to a commit once, and all files are downloaded at that commit.

    Raises:
        ModelLoadError: the hub is unreachable, the disk is full, or the cached files are damaged.
    """
    cached = cached_snapshot(repo, revision)
    if cached is not None:
        _check(cached)
        return cached, cached.name
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name

    query = {"revision": revision, "timeout": REQUEST_SECONDS, "files_metadata": True}
    try:
        info = call_with_timeout(RESOLVE_SECONDS, lambda: HfApi().model_info(repo, **query))
    except Exception as error:
        if not unreachable(error):
            raise
        raise ModelLoadError(
            "it is not in the hub's local cache, and the hub cannot be reached "
            f"({type(error).__name__}): check the network, or give a folder or packaged:NAME"
        ) from error
    files = files_to_download([sibling.rfilename for sibling in info.siblings or ()])
    sizes = {sibling.rfilename: getattr(sibling, "size", 0) or 0 for sibling in info.siblings or ()}
    cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type="model"))
    with room_for(cache, sum(sizes[name] for name in files), "HF_HOME"):
        folder = snapshot_download(repo, revision=info.sha, allow_patterns=files, etag_timeout=REQUEST_SECONDS)
    return Path(folder), str(info.sha)


def _check(folder: Path) -> None:
    """Reject a snapshot whose large files do not match their sha256, which is their name in the cache."""
    for path in sorted(folder.iterdir()):
        blob = path.resolve()
        if _SHA256.fullmatch(blob.name) and file_digest(path) != blob.name:
            raise ModelLoadError(
                f"the hub's cached {path.name} is damaged (its sha256 differs from the downloaded file's): delete {blob}, "
                "and it is fetched again"
            )


def cached_snapshot(repo: str, revision: str | None = None) -> Path | None:
    """Return the folder of a complete model in the hub's local cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Return whether a folder has all weights and a vocabulary; raise a ModelLoadError for a damaged index."""
    _, weights = listed_weights(folder)
    has_weights = bool(weights) and all(path.is_file() for path in weights)
    return has_weights and any((folder / name).exists() for name in _VOCABULARIES)


def files_to_download(names: list[str]) -> list[str]:
    """Select the files of a repository to download: texts, and weights in one format, but no code."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    if not weights:
        weights = [name for name in top if name.startswith("pytorch_model") and name.endswith(".bin")]
    return sorted({*weights, *(name for name in top if name.endswith(_TEXTS))})


def unreachable(error: BaseException) -> bool:
    """Return whether an error means that there was no answer, as opposed to a refusal."""
    bases = {base.__name__ for base in type(error).__mro__}
    refused = {"HfHubHTTPError", "OfflineModeIsEnabled"}
    # Errors of requests or httpx, depending on the huggingface_hub version.
    unanswered = {"ConnectionError", "TimeoutError", "Timeout", "TransportError", "RequestException"}
    return bool(bases & unanswered) and not bases & refused


def call_with_timeout(seconds: float, call: Callable[[], _Result]) -> _Result:
    """Return a call's result, or abandon it and raise TimeoutError."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome["value"]
