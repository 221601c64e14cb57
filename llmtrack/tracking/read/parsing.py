"""Parse MLflow's untyped runs into typed ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from llmtrack import metrics as schema
from llmtrack.tracked.frames import lines_of
from llmtrack.tracked.run import IDENTITY, KILLED, RUNNING, MetricValues, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking import packed
from llmtrack.tracking.owner import ABANDONED, TAG, is_gone

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun

_PREFIX = "llmtrack."
_SPECIAL = ("warnings", "baseline", "position")
_OF_MLFLOW = ("run_id", "run_name", "status", "mlflow_experiment", "start_time", "end_time")
# Texts, each in the tag of its name.
_FIELDS = tuple(name for name in IDENTITY if name not in (*_SPECIAL, *_OF_MLFLOW))

_TAGS = frozenset(_PREFIX + name for name in (*_FIELDS, *_SPECIAL))
_EPOCH = datetime.fromtimestamp(0, timezone.utc)

Value = TypeVar("Value")
# Run id, key and value.
Values = Iterable[tuple[str, str, Value]]


@dataclass
class _RawRun:
    """Untyped data of a run so far."""

    name: str | None
    status: str
    experiment: str
    start_time: int | None
    end_time: int | None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=MetricValues)
    tags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


class RunParser:
    """Collect the raw data of runs and build typed runs, with the names of MLflow experiments by id.

    Thousands of runs share few distinct texts: each is stored once, and parsed once per param.
    """

    def __init__(self, experiment_names: Mapping[str, str]) -> None:
        self._experiment_names = experiment_names
        self._runs: dict[str, _RawRun] = {}
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def run_ids(self) -> Collection[str]:
        """Ids of the runs, as added."""
        return self._runs.keys()

    def add(self, run: MlflowRun) -> None:
        """Add an MLflow run, unless present."""
        info, data = run.info, run.data
        if info.run_id in self._runs:
            return
        run_id = info.run_id
        self.begin(run_id, info.run_name, info.status, info.experiment_id, info.start_time, info.end_time)
        # Skip NaN, and series, whose last value does not describe the run as a whole.
        metrics = {
            key: number for key, number in data.metrics.items() if number == number and not schema.is_series(key)
        }
        self.put(*([(run_id, *item) for item in values.items()] for values in (data.params, metrics, data.tags)))

    def begin(
        self,
        run_id: str,
        name: str | None,
        status: str,
        experiment_id: str,
        start_time: int | None,
        end_time: int | None,
    ) -> None:
        """Add a new run without values."""
        experiment = self._experiment_names.get(experiment_id, "")
        self._runs[run_id] = _RawRun(name, status, experiment, start_time, end_time)

    def put(self, params: Values[str], metrics: Values[float], tags: Values[str]) -> None:
        """Add values to present runs, metrics without series; values of other runs are ignored."""
        # Older versions stored spreads as metrics and digests as params, which are used then.
        raw, text_of = self._runs.get, self._texts.setdefault
        for run_id, key, number in metrics:
            if key not in schema.INTERVAL_KEYS and (run := raw(run_id)) is not None:
                run.metrics[key] = number
        for run_id, key, text in tags:
            if (run := raw(run_id)) is None:
                continue
            if key == schema.DETAILS_TAG:
                _put_details(run, packed.unpack(text), text_of)
            else:
                _put_tag(run, key, text_of(text, text))
        for run_id, key, text in params:
            if (run := raw(run_id)) is not None:
                run.params[key] = text_of(text, text)

    def runs(self) -> Runs:
        """Build all runs, newest first."""
        texts: dict[str, set[str]] = defaultdict(set)
        for raw in self._runs.values():
            for name, text in raw.params.items():
                texts[name].add(text)
        typed = {name: _typed(name, distinct) for name, distinct in texts.items()}
        # Names that clash with other columns are prefixed.
        used = {*IDENTITY, *schema.METRIC_BY_NAME}
        of_params = {name: f"params.{name}" if name in used else name for name in texts}
        used = {*IDENTITY, *schema.PARAM_BY_NAME, *of_params.values()}
        metrics = set[str]().union(*(raw.metrics for raw in self._runs.values()))
        of_metrics = {name: f"metrics.{name}" for name in metrics & used}
        newest = sorted(self._runs.items(), key=lambda item: (item[1].start_time or 0, item[0]), reverse=True)
        return Runs(_run(run_id, raw, of_params, typed, of_metrics) for run_id, raw in newest)


def _put_tag(run: _RawRun, key: str, text: str) -> None:
    if key in _TAGS:
        run.tags[key.removeprefix(_PREFIX)] = text
    elif key in (schema.ENVIRONMENT_TAG, packed.OLDER_ENVIRONMENT):
        run.environment |= packed.facts_of(text)
    elif key == packed.SPREAD:
        run.metrics |= packed.join_spread(packed.unpack(text))
    elif key.startswith(schema.ENV_TAG_PREFIX):
        run.environment[key.removeprefix(schema.ENV_TAG_PREFIX)] = text
    elif key.startswith(schema.DIGEST_PREFIX):
        run.params[key.removeprefix(schema.DIGEST_PREFIX)] = text
    elif key == TAG and run.status == RUNNING and is_gone(text):
        # `close_abandoned` has yet to end it.
        run.status = KILLED
        run.tags |= {"outcome": "killed", "reason": ABANDONED}


def _put_details(run: _RawRun, details: Mapping[str, Any], text_of: Callable[[str, str], str]) -> None:
    for name, value in details.items():
        if name == "spread":
            run.metrics |= packed.join_spread(value)
        elif name == "digest" and isinstance(value, dict):
            run.params |= {key: text_of(text, text) for key, text in value.items()}
        elif isinstance(value, str):
            run.tags[name] = text_of(value, value)


def _run(
    run_id: str,
    raw: _RawRun,
    of_params: Mapping[str, str],
    typed: Mapping[str, Mapping[str, Any]],
    of_metrics: Mapping[str, str],
) -> Run:
    tags = raw.tags
    params = {of_params[name]: typed[name][text] for name, text in raw.params.items()}
    texts: dict[str, Any] = {name: tags.get(name, "") for name in _FIELDS}
    metrics = raw.metrics
    if of_metrics:
        metrics = {of_metrics.get(name, name): value for name, value in metrics.items()}
    return Run(
        run_id,
        raw.name or "",
        raw.status,
        mlflow_experiment=raw.experiment,
        start_time=_moment(raw.start_time),
        end_time=_moment(raw.end_time),
        baseline=tags["baseline"] == "true" if "baseline" in tags else None,
        position=int(tags["position"]) if tags.get("position", "").isdecimal() else None,
        warnings=lines_of(tags.get("warnings", "")),
        params=params,
        metrics=metrics,
        environment=raw.environment,
        **texts,
    )


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)


def _typed(name: str, texts: Collection[str]) -> Mapping[str, Any]:
    """Parse each text of a param: by its kind or, if unknown or invalid, by the narrowest kind that fits all."""
    known = schema.PARAM_BY_NAME.get(name)
    kind = known.kind if known else None
    for candidate in (kind,) if kind is str else (kind, int, float, bool):
        if candidate is None:
            continue
        try:
            return {text: _value(text, candidate) for text in texts}
        except (ValueError, OverflowError):
            continue
    return {text: text for text in texts}


def _value(text: str, kind: type) -> Any:
    """Parse a text as a kind; None for an explicit none.

    Raises:
        ValueError: it is of another kind.
    """
    if kind is str:
        return text
    if text in ("", "None", "none"):
        return None
    if kind is bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise ValueError(text) from None
    if kind is int and not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError(text)  # int() would also accept 1_000, and an all-digit digest overflows.
    value = kind(text)
    return value if value == value else None
