"""Keep credentials out of what is printed, written and tracked (pure functions)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"


_SECRET_NAME = re.compile(
    r"(?i)(token|password|passwd|secret|api_?key|access_?key|secret_?key|credentials?)$"
)


_SHORTEST_SECRET = 8


_REDACTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    # user:password@ of a URI; the password may hold an unquoted @ or /, but a port is no password.
    (re.compile(r"(://)[^\s/@:?#\"'<>]*:(?!\d+(?:[/?#\s]|$))[^\s\"'<>]*@"), rf"\1{HIDDEN}@"),
    # token@ of a web URI (git+https://TOKEN@host).
    (re.compile(r"(?i)(https?://)[^\s/?#\"'<>]+@"), rf"\1{HIDDEN}@"),
    (
        re.compile(
            r"(?i)([?&;](?:[a-z0-9_.-]*(?:token|password|passwd|pwd|secret|api[_-]?key|credential|signature)"
            r"|key|auth|sig|x-amz-[a-z-]+)=)[^&\s\"'<>#;]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s\"']+"),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            r"(?<![A-Za-z0-9])(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|dapi|AKIA)[A-Za-z0-9_-]{16,}"
        ),
        rf"\1{HIDDEN}",
    ),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without credentials: those inside URIs, well-known tokens, and the given secrets.

    >>> redact("postgresql://me:pw@host/db")
    'postgresql://***@host/db'
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in _REDACTIONS:
        text = pattern.sub(replacement, text)
    return text


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of environment variables that are named like credentials, longest first."""
    found = {
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))
