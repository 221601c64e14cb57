"""Read tracked runs back as a typed table, through MLflow's public API only."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack.errors import UsageError
from llmtrack.tracking import schema, store

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 500
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_OPERATOR = re.compile(r"[=<>]|\s(?:i?like\s+['\"]|in\s*\(|is\s+(?:not\s+)?null)", re.IGNORECASE)
_STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")

# Column to the tag it comes from; the others come from the run itself.
_TAG_COLUMNS = {
    "kind": "llmtrack.kind",
    "experiment": "llmtrack.experiment",
    "study_id": "llmtrack.study_id",
    "suite_id": "llmtrack.suite_id",
    "outcome": "llmtrack.outcome",
    "failure": "llmtrack.failure",
    "reason": "llmtrack.reason",
    "warnings": "llmtrack.warnings",
    "same_as": "llmtrack.same_as",
    "question": "llmtrack.question",
    "scenario_id": "llmtrack.scenario_id",
    "workload_id": "llmtrack.workload_id",
    "environment_id": "llmtrack.environment_id",
}

# Column to dtype, in order.
ID_COLUMNS: dict[str, str] = {
    "run_id": "string",
    "run_name": "string",
    "status": "string",
    "kind": "string",
    "experiment": "string",
    "study_id": "string",
    "mlflow_experiment": "string",
    "outcome": "string",
    "failure": "string",
    "reason": "string",
    "warnings": "string",
    "same_as": "string",
    "baseline": "boolean",
    "start_time": "datetime64[ms, UTC]",
    "end_time": "datetime64[ms, UTC]",
    "suite_id": "string",
    "question": "string",
    "scenario_id": "string",
    "workload_id": "string",
    "environment_id": "string",
}

_DTYPE_OF_KIND = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


def runs(
    experiment: str | None = None,
    study: str | None = None,
    model: str | None = None,
    kind: str | None = "scenario",
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return tracked runs, newest first, one row each.

    Args:
        experiment: name of an llmtrack experiment, or else of an MLflow experiment.
        study: id of a study, id of its run, or `latest`.
        model: part of the model's name, in any case.
        kind: `scenario`, `study`, or None for both and for runs that are not llmtrack's.
        search: an MLflow filter (`params.dtype = 'float32'`), or a word that the run's name, the scenario
            or the model must contain.
        status: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`.
        tracking_uri: the store; see `llmtrack.tracking.store.resolve_tracking_uri`.
        progress: show a counter on a terminal while pages arrive.

    Returns:
        The columns of `ID_COLUMNS`, then a column for each param and metric of `tracking/schema.py`, whether
        or not a run has it, then any others: params with the type their values have, metrics as float64,
        facts about the machine as `env.NAME`. A param or metric whose name is taken becomes `params.NAME`
        or `metrics.NAME`. A missing value is `<NA>`, of a float NaN.

    Raises:
        UsageError: no such experiment or study, or MLflow does not understand the filter.
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    names = _experiment_names(client)
    study_id = _study_id(client, list(names), study, experiment) if study else None
    filters = _filters(experiment, study_id, model, kind, search, status)
    found = _search_all(client, list(names), filters, progress)
    if not found and experiment is not None:
        filters = _filters(None, study_id, model, kind, search, status)
        found = _search_all(client, _ids_by_mlflow_name(client, names, experiment), filters, progress)
    wanted = [run for run in found if _matches(run, model, search)]
    return frame(wanted, names)


def studies(
    experiment: str | None = None,
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
) -> pd.DataFrame:
    """Return the runs of studies, newest first; see `runs` for arguments, columns and errors."""
    return runs(experiment=experiment, kind="study", search=search, status=status, tracking_uri=tracking_uri)


def frame(found: Sequence[Run], experiment_names: Mapping[str, str]) -> pd.DataFrame:
    """Return MLflow runs as a typed table; `experiment_names` maps an MLflow experiment's id to its name."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, values in _id_values(found, experiment_names).items():
        columns[name] = pd.Series(values, dtype=ID_COLUMNS[name])
    param_names = _keys((run.data.params for run in found), schema.PARAM_BY_NAME)
    metric_names = _keys((run.data.metrics for run in found), schema.METRIC_BY_NAME)
    # The last value of a series says nothing of the run as a whole.
    metric_names = [name for name in metric_names if not name.startswith(schema.SERIES_PREFIX)]
    for name in param_names:
        known = schema.PARAM_BY_NAME.get(name)
        taken = name in ID_COLUMNS or name in schema.METRIC_BY_NAME
        texts = [run.data.params.get(name) for run in found]
        columns[f"params.{name}" if taken else name] = _typed(texts, known.kind if known else None)
    for name in metric_names:
        numbers = [run.data.metrics.get(name) for run in found]
        columns[f"metrics.{name}" if name in columns else name] = pd.Series(numbers, dtype="float64")
    for tag in _keys((run.data.tags for run in found), ()):
        if tag.startswith(schema.ENV_TAG_PREFIX):
            values = [run.data.tags.get(tag) for run in found]
            columns["env." + tag.removeprefix(schema.ENV_TAG_PREFIX)] = pd.Series(values, dtype="string")
    return pd.DataFrame(columns)


def _id_values(found: Sequence[Run], experiment_names: Mapping[str, str]) -> dict[str, list[Any]]:
    import pandas as pd

    def moment(milliseconds: int | None) -> Any:
        return pd.Timestamp(milliseconds, unit="ms", tz="UTC") if milliseconds is not None else pd.NaT

    values: dict[str, list[Any]] = {name: [] for name in ID_COLUMNS}
    for run in found:
        row: dict[str, Any] = {name: run.data.tags.get(tag) for name, tag in _TAG_COLUMNS.items()}
        baseline = run.data.tags.get("llmtrack.baseline")
        row |= {
            "run_id": run.info.run_id,
            "run_name": run.info.run_name,
            "status": run.info.status,
            "mlflow_experiment": experiment_names.get(run.info.experiment_id),
            "baseline": None if baseline is None else baseline == "true",
            "start_time": moment(run.info.start_time),
            "end_time": moment(run.info.end_time),
        }
        for name, column in values.items():
            column.append(row[name])
    return values


def _keys(mappings: Iterable[Mapping[str, Any]], first: Iterable[str]) -> list[str]:
    """Return all keys: the given ones in their order, then the rest sorted."""
    known = list(first)
    rest = {key for mapping in mappings for key in mapping} - set(known)
    return known + sorted(rest)


def _typed(texts: Sequence[str | None], kind: type | None) -> pd.Series:
    """Return a column of the kind or, if that is unknown or wrong, of the narrowest that fits all values."""
    import pandas as pd

    for candidate in (kind,) if kind is str else (kind, int, float, bool):
        if candidate is None:
            continue
        try:
            values = [None if _is_missing(text, candidate) else _parse(text, candidate) for text in texts]
            return pd.Series(values, dtype=_DTYPE_OF_KIND[candidate])
        except (ValueError, OverflowError):
            continue
    return pd.Series(list(texts), dtype="string")


def _is_missing(text: str | None, kind: type) -> bool:
    return text is None or (kind is not str and text in ("", "None", "none"))


def _parse(text: str | None, kind: type) -> Any:
    assert text is not None
    if kind is bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise ValueError(text) from None
    if kind is int and not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError(text)  # int() would also take 1_000, and a digest of digits overflows.
    return kind(text)


def _filters(
    experiment: str | None,
    study_id: str | None,
    model: str | None,
    kind: str | None,
    search: str | None,
    status: str | None,
) -> list[str]:
    """Return MLflow filters whose results together hold every wanted run, and maybe some more."""
    if status is not None and status.upper() not in _STATUSES:
        raise UsageError(f"unknown status {status!r}: use one of {', '.join(_STATUSES)}")
    fixed = [
        f"tags.`{tag}` = {_quoted(value)}"
        for tag, value in (
            ("llmtrack.kind", kind),
            ("llmtrack.experiment", experiment),
            ("llmtrack.study_id", study_id),
        )
        if value
    ]
    if status:
        fixed.append(f"attributes.status = '{status.upper()}'")
    if search and _OPERATOR.search(search):
        fixed.append(search)
    # MLflow has no OR: one query for each place where a word may stand.
    places = [[""], [""]]
    if model:
        places[0] = [f"params.{key} ILIKE {_pattern(model)}" for key in ("model_id", "model")]
    if search and not _OPERATOR.search(search):
        keys = ("attributes.run_name", "params.scenario", "params.model_id", "params.model")
        places[1] = [f"{key} ILIKE {_pattern(search)}" for key in keys]
    return [" and ".join(filter(None, [*fixed, *chosen])) for chosen in itertools.product(*places)]


def _matches(run: Run, model: str | None, search: str | None) -> bool:
    """Return whether the words really occur, since `_` and `%` are wildcards to MLflow."""
    models = [run.data.params.get("model_id", ""), run.data.params.get("model", "")]
    if model and not _contain(models, model):
        return False
    if search and not _OPERATOR.search(search):
        return _contain([run.info.run_name or "", run.data.params.get("scenario", ""), *models], search)
    return True


def _contain(texts: Iterable[str], word: str) -> bool:
    return any(word.strip().lower() in text.lower() for text in texts)


def _quoted(value: str) -> str:
    if "'" not in value:
        return f"'{value}'"
    if '"' not in value:
        return f'"{value}"'
    raise UsageError(f"{value!r} holds both kinds of quotes: MLflow cannot search for it")


def _pattern(word: str) -> str:
    # Quotes would end MLflow's string early; as wildcards they find at least what is wanted.
    return "'%" + re.sub(r"['\"\\]", "_", word.strip()) + "%'"


def _search_all(
    client: MlflowClient, experiment_ids: Sequence[str], filters: Sequence[str], progress: bool
) -> list[Run]:
    found: dict[str, Run] = {}
    if experiment_ids:
        for text in filters:
            for run in _counted(_pages(client, experiment_ids, text), progress):
                found.setdefault(run.info.run_id, run)
    return sorted(found.values(), key=lambda run: (run.info.start_time or 0, run.info.run_id), reverse=True)


def _pages(client: MlflowClient, experiment_ids: Sequence[str], text: str, limit: int = 0) -> Iterator[Run]:
    from mlflow.exceptions import MlflowException

    token: str | None = None
    while True:
        try:
            page = client.search_runs(
                list(experiment_ids),
                text,
                max_results=limit or _PAGE,
                page_token=token,
                order_by=["attributes.start_time DESC"],
            )
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise store.unreadable(client, error) from error
            raise UsageError(
                f"MLflow does not understand the filter {text!r}: {store.one_line(error)}"
            ) from error
        yield from page
        token = page.token
        if limit or not token:
            return


def _counted(found: Iterator[Run], progress: bool) -> Iterator[Run]:
    if not progress:
        yield from found
        return
    from rich.console import Console

    with Console(stderr=True).status("reading runs") as status:
        for number, run in enumerate(found, start=1):
            if number % 100 == 0:
                status.update(f"reading runs: {number}")
            yield run


def _experiment_names(client: MlflowClient) -> dict[str, str]:
    """Return id to name of every active MLflow experiment."""
    from mlflow.exceptions import MlflowException

    names: dict[str, str] = {}
    token: str | None = None
    while True:
        try:
            page = client.search_experiments(max_results=1000, page_token=token)
        except MlflowException as error:
            raise store.unreadable(client, error) from error
        names.update({item.experiment_id: item.name for item in page})
        token = page.token
        if not token:
            return names


def _study_id(client: MlflowClient, experiment_ids: Sequence[str], study: str, experiment: str | None) -> str:
    """Return the id of a study given by its id, its run's id or `latest`."""
    base = "tags.`llmtrack.kind` = 'study'"
    if experiment:
        base += f" and tags.`llmtrack.experiment` = {_quoted(experiment)}"
    if study == "latest":
        newest = next(_pages(client, experiment_ids, base, limit=1), None) if experiment_ids else None
        if newest is None:
            raise UsageError(
                "there is no study" + (f" of experiment {experiment!r}" if experiment else "") + " yet"
            )
        return newest.data.tags["llmtrack.study_id"]
    if _RUN_ID.fullmatch(study):
        text = f"attributes.run_id = '{study}'"
        run = next(_pages(client, experiment_ids, text, limit=1), None) if experiment_ids else None
        if run is not None and "llmtrack.study_id" in run.data.tags:
            return run.data.tags["llmtrack.study_id"]
    text = f"tags.`llmtrack.study_id` = {_quoted(study)}"
    if experiment_ids and next(_pages(client, experiment_ids, text, limit=1), None) is not None:
        return study
    newest_ids = [
        run.data.tags.get("llmtrack.study_id", "")
        for run in (_pages(client, experiment_ids, base, limit=200) if experiment_ids else ())
    ]
    raise UsageError(f"there is no study {study!r}{_nearest(study, newest_ids)}")


def _ids_by_mlflow_name(client: MlflowClient, names: Mapping[str, str], experiment: str) -> list[str]:
    """Return the MLflow experiment of that name, where no run bears it as the llmtrack experiment's."""
    tag = f"tags.`llmtrack.experiment` = {_quoted(experiment)}"
    if names and next(_pages(client, list(names), tag, limit=1), None) is not None:
        return []  # The experiment is there; the other filters leave nothing of it.
    ids = [number for number, name in names.items() if name == experiment]
    if ids:
        return ids
    studies_found = _pages(client, list(names), "tags.`llmtrack.kind` = 'study'") if names else ()
    known = {run.data.tags.get("llmtrack.experiment", "") for run in studies_found} | set(names.values())
    raise UsageError(f"there is no experiment {experiment!r}{_nearest(experiment, sorted(known - {''}))}")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or list(known)[:5]
    return f": did you mean {', '.join(near)}?" if near else ": nothing is tracked in this store yet"
