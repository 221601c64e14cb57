"""Convert user filters to MLflow filter strings, and check what those cannot express."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.spec.parameter import optional_text
from llmtrack.tracked.run import STATUSES

if TYPE_CHECKING:
    from mlflow.entities import Run

_OPERATOR = re.compile(r"[=<>]|\s(?:i?like\s+['\"]|in\s*\(|is\s+(?:not\s+)?null)", re.IGNORECASE)
_AGO = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Moment = str | date


@dataclass(frozen=True)
class RunFilter:
    """Filter of runs; what is None or empty does not restrict.

    Attributes:
        model: part of the model's name.
        search: an MLflow filter, or a word.
        since: inclusive lower bound of the start time.
        until: exclusive upper bound of the start time.
        run_id: the id or its first characters.
        has_tag: key of a tag that must exist.
    """

    experiment: str | None = None
    study_id: str | None = None
    model: str | None = None
    kind: str | None = None
    search: str | None = None
    status: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    since: Moment | None = None
    until: Moment | None = None
    run_id: str = ""
    has_tag: str = ""

    def __post_init__(self) -> None:
        """Validate the types; raises a UsageError."""
        for name in ("experiment", "study_id", "model", "kind", "search", "status"):
            optional_text(name.removesuffix("_id"), getattr(self, name))
        texts = [*self.tags, *self.tags.values()] if isinstance(self.tags, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"tags {self.tags!r} must map strings to strings: {{'KEY': 'VALUE'}}")

    @property
    def is_mlflow_filter(self) -> bool:
        """Whether `search` is an MLflow filter rather than a word."""
        return bool(self.search and _OPERATOR.search(self.search))

    @property
    def equal_tags(self) -> dict[str, str]:
        """Required tags with their values."""
        tags = {
            "llmtrack.kind": self.kind,
            "llmtrack.experiment": self.experiment,
            "llmtrack.study_id": self.study_id,
            **self.tags,
        }
        return {tag: value for tag, value in tags.items() if value}

    @property
    def limits(self) -> dict[str, str | int]:
        """Conditions on run attributes, by attribute with operator.

        Raises:
            UsageError: the status or a time is invalid.
        """
        if self.status is not None and self.status.upper() not in STATUSES:
            raise UsageError(f"unknown status {self.status!r}: use one of {', '.join(STATUSES)}")
        limits: dict[str, str | int] = {}
        if self.status:
            limits["status ="] = self.status.upper()
        if self.since is not None:
            limits["start_time >="] = milliseconds(self.since)
        if self.until is not None:
            limits["start_time <"] = milliseconds(self.until)
        return limits

    def filters(self) -> list[str]:
        """Translate to MLflow filters whose results together include every matching run, and possibly more.

        Raises:
            UsageError: the status or a time is invalid, or a value cannot be quoted.
        """
        fixed = [f"tags.{key_quoted(tag)} = {quoted(value)}" for tag, value in self.equal_tags.items()]
        fixed += [
            f"attributes.{text} {quoted(limit) if isinstance(limit, str) else limit}"
            for text, limit in self.limits.items()
        ]
        if self.run_id:
            fixed.append(f"attributes.run_id LIKE {quoted(self.run_id + '%')}")
        if self.has_tag:
            # Older MLflow releases lack IS NOT NULL for tags.
            fixed.append(f"tags.{key_quoted(self.has_tag)} LIKE '%'")
        if self.search and self.is_mlflow_filter:
            fixed.append(self.search)
        # MLflow has no OR: use one query per searched attribute.
        places = [[""], [""]]
        if self.model:
            places[0] = [f"params.{key} ILIKE {_pattern(self.model)}" for key in ("model_id", "model")]
        if self.search and not self.is_mlflow_filter:
            keys = ("attributes.run_name", "params.scenario", "params.model_id", "params.model")
            places[1] = [f"{key} ILIKE {_pattern(self.search)}" for key in keys]
        return [" and ".join(filter(None, [*fixed, *words])) for words in itertools.product(*places)]

    def matches(self, run: Run) -> bool:
        """Return whether a run contains the words literally, since `_` and `%` are wildcards in MLflow."""
        models = [run.data.params.get("model_id", ""), run.data.params.get("model", "")]
        if self.model and not _contain(models, self.model):
            return False
        if self.search and not self.is_mlflow_filter:
            names = [run.info.run_name or "", run.data.params.get("scenario", ""), *models]
            return _contain(names, self.search)
        return True


def milliseconds(moment: Moment) -> int:
    """Convert a moment to milliseconds since the epoch.

    Args:
        moment: a datetime or date; ISO text such as `2026-11-28` or `2026-11-28T10:00`; or an age: `90m`, `24h`, `7d`,
            `2w`. UTC unless a time zone is given.

    Raises:
        UsageError: the text is invalid.
    """
    if isinstance(moment, str):
        age = _AGO.fullmatch(moment.strip().lower())
        if age:
            try:
                span = timedelta(**{_UNITS[age[2]]: int(age[1])})
                return round(1000 * (datetime.now(timezone.utc) - span).timestamp())
            except (OverflowError, ValueError):
                raise UsageError(f"{moment[:60]!r} ago is out of range: use less, such as 52w") from None
        try:
            # Python 3.10 does not accept a trailing Z.
            moment = datetime.fromisoformat(moment.strip().replace("Z", "+00:00"))
        except ValueError:
            raise UsageError(
                f"{moment!r} is not a time: use 2026-11-28, 2026-11-28T10:00 or how long ago, such as 7d or 12h"
            ) from None
    if not isinstance(moment, date) or moment != moment:  # pandas' NaT is a date unequal to itself
        raise UsageError(f"{moment!r} is not a time: give a date, or a text such as 2026-11-28 or 7d")
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(1000 * moment.timestamp())


def quoted(value: str) -> str:
    """Quote a value for MLflow's filter language.

    Raises:
        UsageError: it contains both kinds of quotes.
    """
    if "'" not in value:
        return f"'{value}'"
    if '"' not in value:
        return f'"{value}"'
    raise UsageError(f"{value!r} contains both kinds of quotes: MLflow cannot search for it")


def key_quoted(key: str) -> str:
    """Quote a key for MLflow's filter language.

    Raises:
        UsageError: it contains a backtick.
    """
    if "`" in key or not key:
        raise UsageError(f"MLflow cannot search for the key {key!r}")
    return f"`{key}`"


def _contain(texts: Iterable[str], word: str) -> bool:
    return any(word.strip().lower() in text.lower() for text in texts)


def _pattern(word: str) -> str:
    # Replace quotes, which would end MLflow's string, by wildcards, which match them among others.
    return "'%" + re.sub(r"['\"\\]", "_", word.strip()) + "%'"
