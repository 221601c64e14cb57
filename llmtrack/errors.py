"""Errors that a user can cause. Each message names cause and remedy in one line."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Literal, get_args

_SHOWN = 300
"""Maximum characters of a path in a message."""

NO_MEMORY = "out of memory: free some, raise the limit of the container, job or shell, or use a smaller model or batch"
"""Message for a failed allocation."""


def in_words(error: BaseException) -> str:
    """Return an exception's message as one line, else its class name."""
    return " ".join(str(error).split()) or type(error).__name__


def refused_by_system(error: OSError) -> str:
    """Explain an OSError in one line: an unusable file or folder, or a full disk."""
    try:
        os.getcwd()
    except OSError:
        return "the working folder is gone: go to another"
    if error.errno == errno.ENOMEM:
        return NO_MEMORY
    if error.filename is not None:
        path = str(error.filename)
        return f"cannot use {path if len(path) <= _SHOWN else f'{path[:_SHOWN]}…'}: {error.strerror}"
    if isinstance(error, FileNotFoundError):  # `tempfile` found no usable folder
        return f"{error.strerror}: free some space there, or set TMPDIR to a folder that can be written"
    return f"cannot write the output: {error.strerror}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out."""
    if isinstance(error, ScenarioError):
        return error.kind == "out_of_memory"
    # torch's OutOfMemoryError is a RuntimeError; on CPU only its message identifies it.
    text = f"{type(error).__name__} {error}".lower()
    messages = ("outofmemory", "out of memory", "can't allocate", "cannot allocate memory")
    return isinstance(error, MemoryError) or any(words in text for words in messages)


class LlmtrackError(Exception):
    """An error that the user can act on; commands print it as one line and exit with code 2."""


class UsageError(LlmtrackError):
    """An invalid setting: an unknown dtype, an empty corpus, a bad filter."""


class ModelLoadError(LlmtrackError):
    """No model could be loaded; the message lists every candidate with its reason."""


class MissingDependencyError(LlmtrackError):
    """An optional dependency is missing; the message says how to install it."""


class ExtensionError(LlmtrackError):
    """A plug-in of another package is unusable; the message names it, its package and the reason."""


class TrackingError(LlmtrackError):
    """The tracking store is unusable; the message says what is kept and how to send it later."""


FailureKind = Literal["out_of_memory", "unsupported", "too_long", "non_finite", "killed", "timeout", "error"]
"""Kinds of scenario failures."""


class ScenarioError(LlmtrackError):
    """A scenario cannot run (too long for the context, out of memory); the others continue.

    Attributes:
        kind: value of the tag `llmtrack.failure`.
    """

    def __init__(self, message: str, *, kind: FailureKind = "error") -> None:
        if kind not in get_args(FailureKind):
            raise TypeError(f"the kind of a ScenarioError is one of {', '.join(get_args(FailureKind))}: not {kind!r}")
        super().__init__(message)
        self.kind: FailureKind = kind

    def __reduce__(self) -> tuple[partial[ScenarioError], tuple[str]]:
        """Preserve the kind when pickled."""
        return partial(type(self), kind=self.kind), (str(self),)


def actionable(error: Exception) -> str | None:
    """Return the one-line message of an error that the user can act on, or None for a defect of the program."""
    if isinstance(error, LlmtrackError):
        return str(error)
    if is_out_of_memory(error):
        return NO_MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        return refused_by_system(error)
    return None
