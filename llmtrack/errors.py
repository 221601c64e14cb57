"""The errors a user can cause. Each message names the cause and the remedy in one line."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Literal, get_args

_SHOWN = 300
"""Characters of a path that are shown: the reason comes after it, and a line ends somewhere."""

NO_MEMORY = "out of memory: free some, raise the limit of the container, job or shell, or use a smaller model or batch"
"""What is said where the system refuses memory to this process."""


def in_words(error: BaseException) -> str:
    """Return what an exception says in one line, or its name if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def refused_by_system(error: OSError) -> str:
    """Say in one line what the system refuses: a file or folder that the user named, or a disk that is full."""
    try:
        os.getcwd()
    except OSError:
        return "the working folder is gone: go to another"
    if error.errno == errno.ENOMEM:
        return NO_MEMORY
    if error.filename is not None:
        path = str(error.filename)
        return f"cannot use {path if len(path) <= _SHOWN else f'{path[:_SHOWN]}…'}: {error.strerror}"
    if isinstance(error, FileNotFoundError):  # as `tempfile` says it of all the places that it tried
        return f"{error.strerror}: free some space there, or set TMPDIR to a folder that can be written"
    return f"cannot write the output: {error.strerror}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that there is no memory left."""
    if isinstance(error, ScenarioError):
        return error.kind == "out_of_memory"
    # torch's OutOfMemoryError is a RuntimeError; on CPU only the message tells.
    text = f"{type(error).__name__} {error}".lower()
    told = ("outofmemory", "out of memory", "can't allocate", "cannot allocate memory")
    return isinstance(error, MemoryError) or any(words in text for words in told)


class LlmtrackError(Exception):
    """Something the user can act on; commands print it as one line and exit with code 2."""


class UsageError(LlmtrackError):
    """A setting that is not accepted: an unknown dtype, an empty corpus, a bad filter."""


class ModelLoadError(LlmtrackError):
    """No model could be loaded; the message lists every candidate with its reason."""


class MissingDependencyError(LlmtrackError):
    """An optional part is asked for and not installed; the message says how to install it."""


class ExtensionError(LlmtrackError):
    """An engine or a recipe of another package that cannot be used; the message names it, its package and why."""


class TrackingError(LlmtrackError):
    """The tracking store cannot be used; the message says what is kept and how to send it later."""


FailureKind = Literal["out_of_memory", "unsupported", "too_long", "non_finite", "killed", "timeout", "error"]
"""Kinds of errors that end a scenario."""


class ScenarioError(LlmtrackError):
    """One scenario cannot run (too long for the context, out of memory); the others go on.

    Attributes:
        kind: one word for the tag `llmtrack.failure`.
    """

    def __init__(self, message: str, *, kind: FailureKind = "error") -> None:
        if kind not in get_args(FailureKind):
            raise TypeError(f"the kind of a ScenarioError is one of {', '.join(get_args(FailureKind))}: not {kind!r}")
        super().__init__(message)
        self.kind: FailureKind = kind

    def __reduce__(self) -> tuple[partial[ScenarioError], tuple[str]]:
        """Cross a process border with its kind."""
        return partial(type(self), kind=self.kind), (str(self),)
