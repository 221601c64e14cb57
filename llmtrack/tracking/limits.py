"""Fit keys and values into MLflow's limits, and record each change in a tag.

MLflow 3 silently truncates long values and rejects a whole batch for one bad key.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmtrack.host.formatting import truncate
from llmtrack.host.secrets import redact

MAX_KEY = 250
MAX_PARAM_VALUE = 6_000
MAX_TAG_VALUE = 8_000
MAX_RUN_NAME = 200
NOT_IN_MODEL_NAMES = re.compile(r"[/:.%\"']")
"""Characters that MLflow rejects in the name of a logged or registered model."""
SHORTENED_MARK = " ...[shortened]"

_BAD_KEY_CHARACTER = re.compile(r"[^\w.\- :/]")


@dataclass(frozen=True)
class Fitted:
    """Params, metrics and tags that MLflow accepts.

    Attributes:
        metrics: finite values.
        series: finite values with their steps.
        tags: including `llmtrack.omitted` if something was changed.
    """

    params: dict[str, str]
    metrics: dict[str, float]
    series: dict[str, tuple[tuple[int, float], ...]]
    tags: dict[str, str]
    run_name: str


def fit_key(key: str) -> str:
    """Convert a key to one that MLflow accepts."""
    key = _BAD_KEY_CHARACTER.sub("_", _encodable(key))[:MAX_KEY]
    # MLflow treats a key as a path, which must be relative, normalized and confined to its root.
    fitted = posixpath.normpath(key).lstrip("/") or "_"
    if fitted == "." or fitted.startswith(".."):
        fitted = "_" + fitted[1:]
    return fitted


def shorten(text: str, limit: int) -> str:
    """Truncate a text with a visible mark."""
    return truncate(text, limit, SHORTENED_MARK)


def fit_limits(
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    series: Mapping[str, Iterable[float]],
    tags: Mapping[str, str],
    run_name: str,
) -> Fitted:
    """Fit a run's data into MLflow's limits, without credentials; the tag `llmtrack.omitted` records the changes."""
    omitted = [tags["llmtrack.omitted"]] if "llmtrack.omitted" in tags else []
    fitted_params = _fit_texts("param", params, MAX_PARAM_VALUE, omitted)
    fitted_metrics: dict[str, float] = {}
    for key, value in _fit_keys("metric", metrics, omitted):
        number = _number(value)
        if math.isfinite(number):
            fitted_metrics[key] = number
        else:
            omitted.append(f"metric {key}: {number} left out")
    fitted_series: dict[str, tuple[tuple[int, float], ...]] = {}
    for key, values in _fit_keys("series", series, omitted):
        steps = list(enumerate(map(_number, values)))
        finite = tuple((step, value) for step, value in steps if math.isfinite(value))
        if len(finite) < len(steps):
            omitted.append(f"series {key}: {len(steps) - len(finite)} non-finite values left out")
        if finite:
            fitted_series[key] = finite
    fitted_tags = _fit_texts("tag", tags, MAX_TAG_VALUE, omitted)
    name = shorten(redact(_encodable(run_name)), MAX_RUN_NAME)
    if omitted:
        fitted_tags["llmtrack.omitted"] = shorten("\n".join(omitted), MAX_TAG_VALUE)
    return Fitted(fitted_params, fitted_metrics, fitted_series, fitted_tags, name)


def _fit_texts(kind: str, texts: Mapping[str, Any], limit: int, omitted: list[str]) -> dict[str, str]:
    fitted: dict[str, str] = {}
    for key, value in _fit_keys(kind, texts, omitted):
        text = redact(_encodable(str(value)))
        fitted[key] = shorten(text, limit)
        if len(text) > limit:
            omitted.append(f"{kind} {key}: {len(text)} characters shortened to {limit}")
    return fitted


def _fit_keys(kind: str, values: Mapping[str, Any], omitted: list[str]) -> list[tuple[str, Any]]:
    used: set[str] = set(values)
    pairs = []
    for key, value in values.items():
        fitted = fit_key(key)
        if fitted != key:
            fitted = _free(fitted, used)
            omitted.append(f"{kind} {fitted}: renamed from {shorten(ascii(key), MAX_KEY)}")
            used.add(fitted)
        pairs.append((fitted, value))
    return pairs


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _free(key: str, used: set[str]) -> str:
    number, candidate = 2, key
    while candidate in used:
        suffix = f"_{number}"
        candidate, number = key[: MAX_KEY - len(suffix)] + suffix, number + 1
    return candidate


def _encodable(text: str) -> str:
    """Replace lone surrogates and NUL, which UTF-8 or PostgreSQL reject."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
