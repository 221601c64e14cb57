"""Redact credentials in everything printed, written and tracked.

Credentials of registered addresses (the tracking store's) are redacted by value in any spelling, others by pattern.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(?i)(token|password|passwd|pwd|secret|api_?key|access_?key|account_?key|credentials?|signature)$"
)
# Names that end like credentials but hold the shell's working folders.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_SHORTEST_SECRET = 8
_NO_CREDENTIALS = ("sqlite", "file")

_REDACTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    # user:password@ of a web address. The password may contain an unquoted @, ', < or /; digits before a / are a port,
    # unless an @ follows in the next path segment.
    (
        re.compile(
            r"(?i)(\bhttps?://)[^\s/@:?#\"'<>\[]*:(?:(?!\d+(?:[/?#\s]|$))[^\s\"]*|\d+[?#][^\s\"]*|\d+/[^\s/\"]*)@(?=[\w\[])"
        ),
        rf"\1{HIDDEN}@",
    ),
    # Other schemes: SQLAlchemy allows any character in the password.
    (
        re.compile(r"(?i)(?<![a-z0-9+.-])((?!https?:)[a-z][a-z0-9+.-]*://)[^\s/@:?#\"\[]*:[^\s\"]*@(?=[\w\[])"),
        rf"\1{HIDDEN}@",
    ),
    # token@ of a web address (git+https://TOKEN@host).
    (re.compile(r"(?i)(https?://)[^\s/?#\"'<>]+@"), rf"\1{HIDDEN}@"),
    (
        re.compile(
            r"(?i)([?&;](?:[a-z0-9_.-]*(?:token|password|passwd|pwd|secret|api[_-]?key|access_?key|account_?key|credential"
            r"|signature)|key|auth|sig|x-amz-[a-z-]+)=)[^&\s\"'<>#;]+"
        ),
        rf"\1{HIDDEN}",
    ),
    # Key-value connection strings: host=db password='it\'s'.
    (
        re.compile(
            r"(?i)(?<![\w.-])((?:ssl)?password|passwd|accountkey)(\s*=\s*)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\",;&]+)"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s\"']+"), rf"\1{HIDDEN}"),
    (
        re.compile(r"(?<![A-Za-z0-9])(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|dapi|AKIA)[A-Za-z0-9_-]{16,}"),
        rf"\1{HIDDEN}",
    ),
)

_known: dict[str, str] = {}


def register_address(address: str) -> None:
    """Register an address whose credentials are to be redacted in any spelling."""
    if address not in _known and (redacted := _redacted_address(address)) != address:
        _known[address] = redacted
        _known.update(_credentials(address))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Redact the credentials of registered and other addresses, well-known tokens, and the given secrets.

    >>> redact("postgresql://me:pw@host/db")
    'postgresql://***@host/db'
    """
    for spelling in sorted(_known, key=len, reverse=True):
        text = _replaced(text, spelling, _known[spelling])
    for secret in secrets:
        text = _replaced(text, secret, f"{HIDDEN}@" if secret.endswith("@") else HIDDEN)
    for pattern, replacement in _REDACTIONS:
        text = pattern.sub(replacement, text)
    return text


def _replaced(text: str, secret: str, replacement: str) -> str:
    """Replace a secret; `user:password@` up to the last @, because another password may begin with it."""
    if not secret.endswith("@") or secret not in text:
        return text.replace(secret, replacement)
    return re.sub(re.escape(secret) + r"(?:[^\s\"]*@(?=[\w\[]))?", lambda _: replacement, text)


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in environment variables, longest first: by the variable's name, and in addresses."""
    secrets = {
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and name not in _FOLDERS and len(value) >= _SHORTEST_SECRET
    }
    for value in environ.values():
        if "://" in value:
            secrets |= _credentials(value).keys()
    return tuple(sorted(secrets, key=lambda value: (-len(value), value)))


def _redacted_address(address: str) -> str:
    scheme, _, rest = address.partition("://")
    userinfo = _userinfo(address)
    redacted = f"{scheme}://{HIDDEN}@{rest[len(userinfo) + 1 :]}" if userinfo else address
    for value in _query_secrets(address):
        for spelling in _spellings(value):
            redacted = redacted.replace(spelling, HIDDEN)
    return redacted


def _credentials(address: str) -> dict[str, str]:
    """Map every spelling of an address's credentials to its replacement."""
    userinfo = _userinfo(address)
    user, colon, password = userinfo.partition(":")
    credentials = {f"{text}@": f"{HIDDEN}@" for text in (userinfo, unquote(userinfo)) if userinfo}
    _, _, rest = address.partition("://")
    host_and_path, _, query = rest[len(userinfo) + 1 if userinfo else 0 :].partition("?")
    public = {unquote(part) for part in re.split(r"[/#:@.]", host_and_path)}
    public |= {value for name, value in parse_qsl(query) if not _SECRET_NAME.search(name)}
    for secret in (password if colon else user, *_query_secrets(address)):
        if unquote(secret) not in public | {unquote(user) if colon else ""} and _is_distinctive(secret):
            credentials |= dict.fromkeys(_spellings(secret), HIDDEN)
    return credentials


def _userinfo(address: str) -> str:
    """Return the part before the host, parsed as leniently as any library does; may be empty."""
    scheme, _, rest = address.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if scheme.partition("+")[0].lower() in _NO_CREDENTIALS or "@" not in rest or host.startswith("["):
        return ""
    return rest[: rest.rindex("@")] if "@" in host or ":" in host else ""


def _query_secrets(address: str) -> Iterator[str]:
    """Yield the secrets in an address's query, including nested ones (`odbc_connect`)."""
    _, _, query = address.partition("?")
    for name, value in parse_qsl(query):
        if _SECRET_NAME.search(name):
            yield value
        for inner in value.split(";"):
            inner_name, sign, inner_value = inner.partition("=")
            if sign and inner_value and _SECRET_NAME.search(inner_name.strip()):
                yield inner_value.strip()


def _spellings(secret: str) -> set[str]:
    """Return the spellings of a secret: plain, URL-quoted and unquoted, escaped in Python, JSON or HTML."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    quoted = {spell(text) for text in plain for spell in (partial(quote, safe=""), quote, quote_plus)}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), text) for text in quoted}
    pages = {html.escape(text) for text in plain} | {html.escape(text).replace("&#x27;", "&#39;") for text in plain}
    strings = {json.dumps(text)[1:-1] for text in plain} | {repr(text)[1:-1] for text in plain}
    return plain | quoted | lower | pages | strings


def _is_distinctive(secret: str) -> bool:
    """Return whether a secret may be replaced anywhere in a text without hiding ordinary words."""
    if len(secret) >= _SHORTEST_SECRET:
        return True
    kinds = [any(map(kind, secret)) for kind in (str.isalpha, str.isdigit)]
    return len(secret) >= (5 if secret.isalnum() and all(kinds) else 3) and (not secret.isalnum() or all(kinds))
