"""Resolve tracking URIs, the addresses of stores."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llmtrack.errors import TrackingError, UsageError
from llmtrack.host.packages import installed_version
from llmtrack.host.secrets import redact, register_address
from llmtrack.spec.parameter import optional_text

_SQLITE = "sqlite:///"
_DEFAULT = f"{_SQLITE}mlflow.db"
# Paths that every SQLAlchemy release treats alike, so that its slow import can be avoided.
_PLAIN_PATH = re.compile(r"[\w./~-]+", re.ASCII)
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")
_BARE_SCHEMES = ("databricks", "databricks-uc")


def resolve_tracking_uri(uri: str | None = None) -> str:
    """Return the tracking URI: the argument, else MLFLOW_TRACKING_URI, else ./mlflow.db.

    The path of a sqlite database (`sqlite:///relative.db`, or just a file name) becomes absolute, so that it refers to
    the same database in every working directory.

    Raises:
        UsageError: the URI names MLflow's old file store (which MLflow rejects), no file, or no server address.
    """
    uri = optional_text("tracking URI", uri) or os.environ.get("MLFLOW_TRACKING_URI") or _DEFAULT
    register_address(uri)
    scheme = uri.partition(":")[0].lower() if ":" in uri else ""
    if scheme == "sqlite":
        return _absolute_sqlite(uri)
    path = Path(os.path.expanduser(unquote(urlsplit(uri).path) if scheme == "file" else uri))
    if scheme in ("", "file") and uri not in _BARE_SCHEMES:
        if path.is_dir() or path.suffix not in (".db", ".sqlite", ".sqlite3"):
            raise UsageError(
                f"tracking URI {redact(uri)!r} is a folder: MLflow no longer writes its old file store; "
                "use sqlite:///mlflow.db or a server's http:// address"
            )
        return _sqlite_uri(path.absolute())
    if scheme in _SERVERS and not _is_address(uri):
        raise UsageError(
            f"tracking URI {redact(uri)!r} is not a server address: write {scheme}://HOST:PORT, and special characters of a "
            "password as %XX (/ is %2F)"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a resolved sqlite URI; None for other stores or in-memory databases."""
    if not uri.startswith(_SQLITE):
        return None
    path: str | None = uri.removeprefix(_SQLITE)
    if not _PLAIN_PATH.fullmatch(uri.removeprefix(_SQLITE)):
        from sqlalchemy.engine import make_url

        # MLflow percent-encodes the path, and only some SQLAlchemy releases decode it.
        path = make_url(uri).database
    return Path(path) if path and path != ":memory:" else None


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open an SQLite file without writing or creating it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def is_database(uri: str) -> bool:
    """Return whether a URI is that of a database rather than of a server."""
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def _is_address(uri: str) -> bool:
    """Return whether a URI has a host, and a valid port if any."""
    try:
        parts = urlsplit(uri)
        # A / ? or # in the password would turn its rest into the path, and the user into the host.
        cut_off = "@" not in parts.netloc and ":" in parts.netloc and "@" in uri and parts.netloc[0] != "["
        return bool(parts.hostname) and parts.port != 0 and not cut_off
    except ValueError:
        return False


def _absolute_sqlite(uri: str) -> str:
    path = sqlite_path(uri)
    if path is None:
        raise UsageError(
            f"tracking URI {uri!r} names no file, so that nothing would be stored: write sqlite:///mlflow.db, with four slashes "
            "before an absolute path"
        )
    options = uri.partition("?")[1:]
    return _sqlite_uri(Path(os.path.expanduser(path)).absolute()) + "".join(options)


def _sqlite_uri(path: Path) -> str:
    if _PLAIN_PATH.fullmatch(str(path)):
        return f"{_SQLITE}{path}"
    from sqlalchemy.engine import URL, make_url

    uri = URL.create("sqlite", database=str(path)).render_as_string()
    if make_url(uri).database != str(path):
        raise TrackingError(
            f"SQLAlchemy {installed_version('sqlalchemy')} cannot address {path}: rename the file or folder with a ? in its name"
        )
    return uri
