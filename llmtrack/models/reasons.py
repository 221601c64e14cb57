"""Say in one line why a model could not be loaded, and what to do about it."""

from __future__ import annotations

from llmtrack.errors import LlmtrackError

MAX_CHARACTERS = 400

# (class name of the exception or of a base of it, text that its message must hold, what the user reads).
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "Exception",
        "trust_remote_code",
        "it needs code from its own repository, which llmtrack never runs: choose another model",
    ),
    ("GatedRepoError", "", "the hub asks for permission: accept its terms and log in with `hf auth login`"),
    ("RevisionNotFoundError", "", "the hub has no such revision: check the name"),
    (
        "RepositoryNotFoundError",
        "",
        "the hub has no such model, or it is private: check the id, or log in with `hf auth login`",
    ),
    (
        "OfflineModeIsEnabled",
        "",
        "it is not in the hub's local cache, and offline mode is on: unset HF_HUB_OFFLINE, or fetch it first",
    ),
    (
        "OutOfMemoryError",
        "",
        "the device has not enough memory: choose a smaller model, a 16-bit dtype or device=cpu",
    ),
    ("MemoryError", "", "this machine has not enough memory: choose a smaller model or a 16-bit dtype"),
    (
        "ValueError",
        "Unrecognized configuration class",
        "it is not a causal language model: choose a decoder-only one",
    ),
    ("SafetensorError", "", "its safetensors file is damaged: fetch it again"),
)


def one_line(error: BaseException) -> str:
    """Return the reason and the remedy of a failure as one line, without paths of the library's own code."""
    if isinstance(error, LlmtrackError):
        return _flat(str(error))
    bases = {base.__name__ for base in type(error).__mro__}
    for name, text, advice in _KNOWN:
        if name in bases and text in str(error):
            return advice
    return f"{type(error).__name__}: {_flat(str(error))}"


def _flat(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_CHARACTERS else flat[: MAX_CHARACTERS - 3] + "..."
