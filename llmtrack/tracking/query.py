"""Read tracked runs back as a typed table, through MLflow's public API only."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.tracking import store
from llmtrack.tracking.frame import frame

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 500
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_OPERATOR = re.compile(r"[=<>]|\s(?:i?like\s+['\"]|in\s*\(|is\s+(?:not\s+)?null)", re.IGNORECASE)
_STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")


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
        The columns of `llmtrack.tracking.frame.ID_COLUMNS`, then a column for each param and metric of `tracking/schema.py`, whether
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
