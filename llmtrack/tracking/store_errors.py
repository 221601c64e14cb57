"""Classify errors of the tracking store and explain them in one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llmtrack.errors import TrackingError, in_words
from llmtrack.host.formatting import truncate
from llmtrack.host.secrets import redact, secrets_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PERMANENT_CODES = frozenset(
    {
        "BAD_REQUEST",
        "ENDPOINT_NOT_FOUND",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "PERMISSION_DENIED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
        "UNAUTHENTICATED",
    }
)
_LOCAL_ERROR_NAMES = (
    "EACCES", "EDQUOT", "EFBIG", "EIO", "EISDIR", "EMFILE", "ENFILE", "ENAMETOOLONG", "ENOENT", "ENOMEM", "ENOSPC", "ENOTDIR",
    "EPERM", "EROFS", "ESTALE",
)  # fmt: skip
_LOCAL_ERRORS = frozenset(getattr(errno, name) for name in _LOCAL_ERROR_NAMES if hasattr(errno, name))

# Database messages and their meaning.
_DATABASE = {
    "database is locked": "another program has locked the database: end it, or wait until it has finished",
    "database or disk is full": "the disk of the database is full: free some space",
    "database disk image is malformed": "the database is damaged: restore a backup, or use another store",
    "file is not a database": "the file is not a SQLite database: use another path",
}
# Permanent refusals of a reachable database.
_REFUSED = re.compile(
    r"authentication failed|access denied|login failed|does not exist|unknown database|no pg_hba\.conf|permission denied|role "
    r"|cannot open database|no such table",
    re.IGNORECASE,
)
_SCHEMA = re.compile(r"out-of-date database schema \(found version (\w+)")
_STATEMENT = re.compile(r"\s*(\[SQL: .*|\(Background on this error at: \S+\))")


class UnreachableError(TrackingError):
    """The store is temporarily unreachable."""


def is_permanent(error: BaseException) -> bool:
    """Return whether repeating the call is useless."""
    return getattr(error, "error_code", None) in _PERMANENT_CODES


def is_connection_failure(error: BaseException | None) -> bool:
    """Return whether a database error, or its cause, is a connection failure."""
    while error is not None:
        if type(error).__name__ in ("OperationalError", "InterfaceError") or isinstance(error, ConnectionError):
            return _REFUSED.search(str(error)) is None
        error = error.__cause__ or error.__context__
    return False


def is_local(error: BaseException) -> bool:
    """Return whether an error concerns this machine's files (full disk, no permission) rather than the store."""
    return isinstance(error, OSError) and error.errno in _LOCAL_ERRORS and not isinstance(error, ConnectionError)


def refusal(uri: str, error: BaseException) -> str:
    """Explain why a server rejects requests, with the remedy if known."""
    text = one_line(error)
    if "invalid host header" in text.lower():
        host = urlsplit(uri).hostname
        return (
            f"{redact(uri)} refuses requests under the name {host} (Invalid Host header): start the server with "
            f"--allowed-hosts {host}, or use an address that it allows, such as 127.0.0.1"
        )
    code = getattr(error, "error_code", None)
    if code == "UNAUTHENTICATED" or re.search(r"\b401\b", text):
        return (
            f"{redact(uri)} requires a user and a password, or rejects the given ones: set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN)"
        )
    if is_denied(error):
        return f"{redact(uri)} denies permission ({text}): {missing_permission(uri)}"
    return f"{redact(uri)} does not answer as an MLflow server: {text}"


def is_denied(error: BaseException) -> bool:
    """Return whether a server denies permission."""
    if getattr(error, "error_code", None) == "PERMISSION_DENIED":
        return True
    return re.search(r"\b403\b|permission denied", one_line(error), re.IGNORECASE) is not None


def missing_permission(uri: str, experiment: str = "", permission: str = "EDIT") -> str:
    """Explain which permission is missing on an experiment (empty: unknown), and the remedy."""
    name = os.environ.get("MLFLOW_TRACKING_USERNAME")
    user = f"the user {name!r}" if name else "this user"
    target = f"the experiment {experiment!r}" if experiment else "its experiment"
    return (
        f"{user} needs the permission {permission} on {target}: ask whoever "
        f"administers {redact(uri)} for it, or use another experiment (experiment_name, MLFLOW_EXPERIMENT_NAME)"
    )


@contextmanager
def one_line_errors(client: MlflowClient) -> Iterator[None]:
    """Convert MLflow's store errors to one-line `TrackingError`s."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise read_error(client, error) from error


def read_error(client: MlflowClient, error: BaseException) -> TrackingError:
    """Make the error for a store that cannot be read, with the remedy if permission is denied."""
    uri = client.tracking_uri
    remedy = f": {missing_permission(uri, permission='READ')}" if is_denied(error) else ""
    return TrackingError(f"cannot read from {redact(uri)}: {one_line(error)}{remedy}")


def one_line(error: BaseException) -> str:
    """Shorten an error to one line without credentials or SQL statements."""
    return truncate(redact(_meaning(in_words(error)), secrets_of(os.environ)), 300, "...")


def _meaning(text: str) -> str:
    for message, meaning in _DATABASE.items():
        if message in text:
            return meaning
    if outdated := _SCHEMA.search(text):
        return _other_release(outdated[1])
    return _STATEMENT.sub("", text)


def _other_release(revision: str) -> str:
    """Explain whether a database with another schema revision is from an older or newer MLflow."""
    package = find_spec("mlflow.store.db_migrations.versions")
    folders = package.submodule_search_locations if package else None
    known = any(next(Path(folder).glob(f"{revision}_*.py"), None) for folder in folders or ())
    if known:
        return (
            "it was created by an older MLflow: copy the file, then migrate it by `mlflow db upgrade` with its address, or use "
            "another store"
        )
    return "it was created by a newer MLflow than the installed one: upgrade mlflow, or use another store"
