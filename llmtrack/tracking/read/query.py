"""Read tracked runs back, typed: through MLflow's API, or directly from a known database."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.host.console import neutral_console
from llmtrack.host.libraries import gc_paused
from llmtrack.spec.parameter import optional_text, require_texts
from llmtrack.tracked.frames import frame_of, pick
from llmtrack.tracked.run import FINISHED, RUNNING, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking import packed
from llmtrack.tracking.read import direct
from llmtrack.tracking.read.filters import Moment, RunFilter, quoted
from llmtrack.tracking.read.lookup import run_of_alias, run_of_id
from llmtrack.tracking.read.parsing import RunParser
from llmtrack.tracking.read.source import Source, read_pages

if TYPE_CHECKING:
    import pandas as pd


STUDY_KINDS = ("study:ID", "the id of its run", "latest", "latest:EXPERIMENT", "alias:NAME")
SUITE = "suite"
# Experiment of runs that hold a `compare` table and no scenarios.
COMPARISON = "compare"
TAKEN_OVER_TAG = "llmtrack.taken_over"
_STUDY, _SUITE = "llmtrack.study_id", "llmtrack.suite_id"
_STUDIES_NAMED = 200


def runs(
    experiment: str | None = None,
    study: str | None = None,
    model: str | None = None,
    kind: str | None = "scenario",
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
    progress: bool = False,
    *,
    tags: Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return tracked runs, newest first, one row each.

    Args:
        experiment: llmtrack experiment, or else MLflow experiment.
        study: a study or suite: its id, the id of its run (or the 8 characters that are listed), `latest` (the newest
            suite, or the newest study outside of one), `latest:EXPERIMENT` (its newest study) or `alias:NAME`, each
            also with `#SCENARIO`. For a suite, the scenarios of all its studies.
        model: part of the model's name, case-insensitive.
        kind: `scenario`, `study`, or None for both and for runs not made by llmtrack.
        search: an MLflow filter (`params.dtype = 'float32'`), or a word contained in the run name, scenario or model.
        status: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`.
        tracking_uri: the store; see `llmtrack.tracking.store.resolve_tracking_uri`.
        progress: show a progress bar on a terminal.
        tags: required tags, such as `{"llmtrack.env.git_branch": "main"}`.
        since: inclusive lower bound of the start time: a datetime, ISO text (UTC) or an age such as `7d`.
        until: exclusive upper bound of the start time.
        columns: only these columns, in this order.

    Returns:
        The columns of `llmtrack.tracked.frames.ID_COLUMNS`, then a column for each param and metric of `metrics/`,
            whether or not a run has it, then any others: params with the type of their values, metrics as float64 in
            the units of docs/metrics.md, machine facts as `env.NAME`. A param or metric whose name is taken becomes
            `params.NAME` or `metrics.NAME`. Missing values are `<NA>`, for floats NaN.

    Raises:
        UsageError: no such experiment, study or column, or MLflow rejects the filter.
        TrackingError: the store cannot be read.
    """
    found = frame_of(
        tracked_runs(
            experiment,
            study,
            model,
            kind,
            search,
            status,
            tracking_uri,
            progress,
            tags=tags,
            since=since,
            until=until,
        )
    )
    return found if columns is None else pick(found, require_texts("column", columns))


def tracked_runs(
    experiment: str | None = None,
    study: str | None = None,
    model: str | None = None,
    kind: str | None = "scenario",
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
    progress: bool = False,
    *,
    tags: Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> Runs:
    """Return tracked runs, newest first; see `runs` for arguments and errors."""
    source = Source(tracking_uri)
    everywhere = list(source.names)
    named, _, scenario = (optional_text("study", study) or "").partition("#")
    study_id = _study_id(source, named, experiment) if study else None
    # Other interpretations are reported below.
    of_tags = dict(tags) if isinstance(tags, Mapping) else tags or {}
    if study_id and kind == "scenario" and study_id.startswith(f"{SUITE}-"):
        of_tags = {**of_tags, "llmtrack.suite_id": study_id}
        study_id = None
    # Only older versions have a tag for each value: filter the others after reading.
    of_values = packed.packed_tags(of_tags) if isinstance(of_tags, Mapping) else {}
    left = {key: of_tags[key] for key in of_tags if key not in of_values} if of_values else of_tags
    wanted = RunFilter(experiment, study_id, model, kind, search, status, left, since, until)
    with _progress(progress) as on_page:
        found = _gather(source, everywhere, wanted, on_page)
        if not len(found) and experiment is not None:
            by_name = _ids_by_mlflow_name(source, experiment)
            found = _gather(source, by_name, dataclasses.replace(wanted, experiment=None), on_page)
    held = _taken_over(source, study_id) if study_id and kind in (None, "scenario") else {}
    if held:
        # From any study and experiment.
        others = dataclasses.replace(wanted, study_id=None, experiment=None)
        ids = ", ".join(map(quoted, held))
        for text in others.filters():
            for page in read_pages(
                source.client, everywhere, f"{text} and attributes.run_id IN ({ids})".removeprefix(" and ")
            ):
                for run in filter(others.holds, page):
                    found.add(run)
    with gc_paused():
        table = found.runs()
    table = as_own(table, study_id, held) if study_id and held else table
    table = table.where(lambda run: all(_as_tag(run.get(packed.column(key))) == of_values[key] for key in of_values))
    return of_scenario(table, scenario, named) if scenario else table


def of_scenario(found: Runs, scenario: str, named: str) -> Runs:
    """Return the runs of one scenario among those selected.

    Raises:
        UsageError: there is none.
    """
    chosen = found.where(lambda run: run.scenario == scenario)
    if not chosen:
        there = ", ".join([*dict.fromkeys(filter(None, found.scenarios))][:8]) or "none"
        raise UsageError(f"{named!r} has no scenario {scenario!r}: it has {there}")
    return chosen


def runs_of_id(run_id: str, tracking_uri: str | None = None) -> Runs:
    """Return the scenario run with an id, or all scenarios of the study with that run; see `runs`.

    Args:
        run_id: the id, or its first characters.
        tracking_uri: as in `runs`.
    """
    source = Source(tracking_uri)
    named = run_of_id(source, run_id)
    if named is not None and named.tags.get("llmtrack.kind") == "study":
        return tracked_runs(study=named.tags.get("llmtrack.study_id"), tracking_uri=tracking_uri)
    wanted = RunFilter(kind="scenario", run_id=run_id if named is None else named.run_id)
    return _gather(source, list(source.names), wanted, lambda count: None).runs()


def studies(
    experiment: str | None = None,
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
) -> pd.DataFrame:
    """Return the runs of studies, newest first; see `runs` for arguments, columns and errors."""
    return runs(experiment=experiment, kind="study", search=search, status=status, tracking_uri=tracking_uri)


def study_run(study: str, tracking_uri: str | None = None) -> Run:
    """Return the run of a study or suite.

    Args:
        study: as in `runs`.
        tracking_uri: as in `runs`.

    Raises:
        UsageError: there is no such study.
        TrackingError: the store cannot be read.
    """
    if "#" in study:
        raise UsageError(f"{study!r} names a scenario: name the whole study, {study.partition('#')[0]!r}")
    found = tracked_runs(study=study, kind="study", tracking_uri=tracking_uri)
    if not found:
        raise UsageError(f"the run of study {study!r} is not in this store: send it with llmtrack sync")
    return found[0]


def why_empty(study: str | None, tracking_uri: str | None = None) -> str:
    """Explain that a study without scenario runs is still running, or ended early; empty otherwise.

    Args:
        study: as in `runs`.
        tracking_uri: as in `runs`.
    """
    if not study:
        return ""
    try:
        own = study_run(study.partition("#")[0], tracking_uri)
    except LlmtrackError:
        return ""
    if own.status == FINISHED or Source(tracking_uri).newest(RunFilter(kind="scenario", study_id=own.study_id)):
        return ""
    name, since = own.text("experiment"), f"{own.start_time:%Y-%m-%d %H:%M} UTC"
    if own.status == RUNNING:
        return f"{name} is running since {since}, nothing measured yet: try again when its first scenario has ended"
    return f"{name}, started {since}, {own.state}; nothing was measured: run it again"


def taken_over_tag(earlier: Runs) -> dict[str, str]:
    """Return the tag with the runs taken over: each run's id, current scenario, and whether it is the baseline."""
    held = {run.run_id: [run.text("scenario"), bool(run.baseline)] for run in earlier}
    return {TAKEN_OVER_TAG: json.dumps(held, separators=(",", ":"))} if held else {}


def link_to(run: Run) -> str:
    """Describe a run that is taken over."""
    return f"{run.text('experiment')}, run {run.run_id}"


def taken_over(tags: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Parse the tag: scenario name and baseline flag by run id."""
    try:
        return {
            str(run_id): (str(name), bool(base)) for run_id, (name, base) in json.loads(tags[TAKEN_OVER_TAG]).items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def as_own(runs: Runs, study_id: str, held: Mapping[str, tuple[str, bool]]) -> Runs:
    """Present the runs that a study took over as its own."""

    def own(run: Run) -> Run:
        scenario, baseline = held[run.run_id]
        return run.as_scenario(scenario, study_id=study_id, baseline=baseline)

    return Runs(own(run) if run.run_id in held else run for run in runs)


def _as_tag(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value or "")


def _gather(
    source: Source, experiment_ids: Sequence[str], wanted: RunFilter, on_page: Callable[[int], None]
) -> RunParser:
    filters = wanted.filters()
    read = direct.read(source.uri, source.names, experiment_ids, wanted, on_page)
    if read is not None:
        return read
    found = RunParser(source.names)
    for text in filters:
        for page in read_pages(source.client, experiment_ids, text):
            for run in page:
                if wanted.holds(run):
                    found.add(run)
            on_page(len(found))
    return found


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Callable[[int], None]]:
    """Provide a callback for the number of runs read so far; MLflow does not report the total."""
    if not shown:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("reading runs"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*parts, console=neutral_console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)


def _study_id(source: Source, study: str, experiment: str | None) -> str:
    """Return the id of the selected study; see `runs`."""
    kind, colon, value = study.removeprefix("study:").partition(":")
    if kind == "alias" and value:
        study = run_of_alias(source, value, experiment)
    elif kind == "latest":
        study, experiment = "latest", value or experiment
    elif colon:
        raise UsageError(f"invalid study {study!r}: use {', '.join(STUDY_KINDS)}")
    else:
        study = kind
    any_study = RunFilter(experiment, kind="study")
    if study == "latest":
        if newest := _newest(source, any_study):
            return newest
        raise UsageError(
            "there is no study"
            + (f" of experiment {experiment!r}" if experiment else "")
            + f" yet: `llmtrack run {experiment or 'baseline'}` makes one"
        )
    named = run_of_id(source, study)
    if named is not None and "llmtrack.study_id" in named.tags:
        return named.tags["llmtrack.study_id"]
    if source.newest(RunFilter(study_id=study)):
        return study
    ids = [run.tags.get("llmtrack.study_id", "") for run in source.newest(any_study, _STUDIES_NAMED)]
    raise UsageError(f"there is no study {study!r}{_nearest(study, ids)}")


def newest_study(experiment: str | None = None, tracking_uri: str | None = None) -> str:
    """Return the id of `latest`; see `runs`.

    Raises:
        UsageError: nothing is tracked yet.
        TrackingError: the store cannot be read.
    """
    return _study_id(Source(tracking_uri), "latest", experiment)


def _newest(source: Source, wanted: RunFilter) -> str:
    """Return the id of the newest study started by the user, or the newest of an experiment; empty if there is none.

    Studies within a suite only count if their experiment is named.
    """
    tags: list[Mapping[str, str]] = []
    for limit in (1, _STUDIES_NAMED):
        tags = [run.tags for run in source.newest(wanted, limit) if _STUDY in run.tags]
        for each in tags:
            if wanted.experiment or (_SUITE not in each and each.get("llmtrack.experiment") != COMPARISON):
                return each[_STUDY]
    # The suite's own run may be in another store, or not yet sent.
    return next((each.get(_SUITE) or each[_STUDY] for each in tags), "")


def _taken_over(source: Source, study_id: str) -> dict[str, tuple[str, bool]]:
    """Return the runs that a study took over from earlier ones."""
    return next((taken_over(run.tags) for run in source.newest(RunFilter(kind="study", study_id=study_id))), {})


def _ids_by_mlflow_name(source: Source, experiment: str) -> list[str]:
    """Return the MLflow experiment of that name, if no llmtrack experiment has it."""
    if source.newest(RunFilter(experiment)):
        return []  # The experiment exists, but the other filters exclude everything.
    ids = [number for number, name in source.names.items() if name == experiment]
    if ids:
        return ids
    studies_found = source.newest(RunFilter(kind="study"), _STUDIES_NAMED)
    known = {run.tags.get("llmtrack.experiment", "") for run in studies_found} | set(source.names.values())
    raise UsageError(f"there is no experiment {experiment!r}{_nearest(experiment, sorted(known - {''}))}")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or list(known)[:5]
    return f": did you mean {', '.join(near)}?" if near else ": nothing is tracked in this store yet"
