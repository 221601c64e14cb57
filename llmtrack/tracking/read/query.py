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
from llmtrack.spec.parameter import require_text, require_texts
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
        tracking_uri: the store; see `llmtrack.tracking.uri.resolve_tracking_uri`.
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
    table = frame_of(
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
    return table if columns is None else pick(table, require_texts("column", columns))


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
    run_filter = RunFilter(experiment, None, model, kind, search, status, tags or {}, since, until)
    selector, scenario = ("", "") if study is None else split_scenario(require_text("study", study))
    study_id = _study_id(source, selector, experiment) if selector else None
    # Only older versions have a tag for each value: filter by the others after reading.
    packed_tags = packed.packed_only(run_filter.tags)
    searched = {key: value for key, value in run_filter.tags.items() if key not in packed_tags}
    if study_id and kind == "scenario" and study_id.startswith(f"{SUITE}-"):
        searched, study_id = searched | {_SUITE: study_id}, None
    run_filter = dataclasses.replace(run_filter, study_id=study_id, tags=searched)
    with _progress(progress) as on_page:
        parser = _gather(source, everywhere, run_filter, on_page)
        if not len(parser) and experiment is not None:
            by_name = _ids_by_mlflow_name(source, experiment)
            parser = _gather(source, by_name, dataclasses.replace(run_filter, experiment=None), on_page)
    earlier = _taken_over(source, study_id) if study_id and kind in (None, "scenario") else {}
    if earlier:
        # They may be of any study and experiment.
        others = dataclasses.replace(run_filter, study_id=None, experiment=None)
        ids = ", ".join(map(quoted, earlier))
        _add_pages(parser, source, everywhere, others, f"attributes.run_id IN ({ids})")
    with gc_paused():
        tracked = parser.runs()
    tracked = _as_own(tracked, study_id, earlier) if study_id and earlier else tracked
    tracked = tracked.where(
        lambda run: all(_as_tag(run.get(packed.column(key))) == value for key, value in packed_tags.items())
    )
    return of_scenario(tracked, scenario, selector) if scenario else tracked


def split_scenario(selector: str) -> tuple[str, str]:
    """Split `NAME#SCENARIO`; return the scenario empty without `#`.

    Raises:
        UsageError: a part is empty, such as an unset variable of a shell: it must not mean the newest study, or all.
    """
    name, mark, scenario = selector.strip().partition("#")
    missing = "run or study" if name in ("", "study:") else "scenario after #" if mark and not scenario else ""
    if missing:
        raise UsageError(f"{selector!r} names no {missing}: use for example latest, latest:precision or latest#float32")
    return name, scenario


def of_scenario(candidates: Runs, scenario: str, selector: str) -> Runs:
    """Select the runs of one scenario.

    Raises:
        UsageError: there is none.
    """
    selected = candidates.where(lambda run: run.scenario == scenario)
    if not selected:
        names = ", ".join([*dict.fromkeys(filter(None, candidates.scenarios))][:8]) or "none"
        raise UsageError(f"{selector!r} has no scenario {scenario!r}: it has {names}")
    return selected


def runs_of_id(run_id: str, tracking_uri: str | None = None) -> Runs:
    """Return the scenario run with an id, or its first characters, or all scenarios of the study with that run."""
    source = Source(tracking_uri)
    run = run_of_id(source, run_id)
    if run is not None and run.tags.get("llmtrack.kind") == "study":
        return tracked_runs(study=run.tags.get("llmtrack.study_id"), tracking_uri=tracking_uri)
    run_filter = RunFilter(kind="scenario", run_id=run_id if run is None else run.run_id)
    return _gather(source, list(source.names), run_filter, lambda count: None).runs()


def studies(
    experiment: str | None = None,
    search: str | None = None,
    status: str | None = None,
    tracking_uri: str | None = None,
) -> pd.DataFrame:
    """Return the runs of studies, newest first; see `runs` for arguments, columns and errors."""
    return runs(experiment=experiment, kind="study", search=search, status=status, tracking_uri=tracking_uri)


def study_run(study: str, tracking_uri: str | None = None) -> Run:
    """Return the run of a study or suite, selected as in `runs`.

    Raises:
        UsageError: there is no such study.
        TrackingError: the store cannot be read.
    """
    if "#" in study:
        raise UsageError(f"{study!r} names a scenario: name the whole study, {study.partition('#')[0]!r}")
    tracked = tracked_runs(study=study, kind="study", tracking_uri=tracking_uri)
    if not tracked:
        raise UsageError(f"the run of study {study!r} is not in this store: send it with llmtrack sync")
    return tracked[0]


def newest_study(experiment: str | None = None, tracking_uri: str | None = None) -> str:
    """Return the id of `latest`; see `runs`.

    Raises:
        UsageError: nothing is tracked yet.
        TrackingError: the store cannot be read.
    """
    return _study_id(Source(tracking_uri), "latest", experiment)


def why_empty(study: str | None, tracking_uri: str | None = None) -> str:
    """Explain that a study without scenario runs is still running, or ended early; empty otherwise."""
    if not study:
        return ""
    try:
        run = study_run(study.partition("#")[0], tracking_uri)
    except LlmtrackError:
        return ""
    if run.status == FINISHED or Source(tracking_uri).newest(RunFilter(kind="scenario", study_id=run.study_id)):
        return ""
    name, since = run.text("experiment"), f"{run.start_time:%Y-%m-%d %H:%M} UTC"
    if run.status == RUNNING:
        return f"{name} is running since {since}, nothing measured yet: try again when its first scenario has ended"
    return f"{name}, started {since}, {run.state}; nothing was measured: run it again"


def taken_over_tag(earlier: Runs) -> dict[str, str]:
    """Return the tag of the earlier runs that a study takes over: scenario and baseline by run id."""
    runs_by_id = {run.run_id: [run.text("scenario"), bool(run.baseline)] for run in earlier}
    return {TAKEN_OVER_TAG: json.dumps(runs_by_id, separators=(",", ":"))} if runs_by_id else {}


def _as_tag(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value or "")


def _gather(
    source: Source, experiment_ids: Sequence[str], run_filter: RunFilter, on_page: Callable[[int], None]
) -> RunParser:
    run_filter.filters()  # Validate, even if MLflow is not asked.
    parser = direct.read(source.uri, source.names, experiment_ids, run_filter, on_page)
    if parser is None:
        parser = RunParser(source.names)
        _add_pages(parser, source, experiment_ids, run_filter, on_page=on_page)
    return parser


def _add_pages(
    parser: RunParser,
    source: Source,
    experiment_ids: Sequence[str],
    run_filter: RunFilter,
    restriction: str = "",
    on_page: Callable[[int], None] = lambda count: None,
) -> None:
    """Add the matching runs, read through MLflow, with a restriction in its filter language."""
    for text in run_filter.filters():
        for page in read_pages(source.client, experiment_ids, " and ".join(filter(None, (text, restriction)))):
            for run in page:
                if run_filter.matches(run):
                    parser.add(run)
            on_page(len(parser))


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
    run = run_of_id(source, study)
    if run is not None and "llmtrack.study_id" in run.tags:
        return run.tags["llmtrack.study_id"]
    if source.newest(RunFilter(study_id=study)):
        return study
    ids = [run.tags.get("llmtrack.study_id", "") for run in source.newest(any_study, _STUDIES_NAMED)]
    raise UsageError(f"there is no study {study!r}{_nearest(study, ids)}")


def _newest(source: Source, run_filter: RunFilter) -> str:
    """Return the id of the newest study started by the user, or the newest of an experiment; empty if there is none.

    Studies within a suite only count if their experiment is named.
    """
    studies: list[Mapping[str, str]] = []
    for limit in (1, _STUDIES_NAMED):
        studies = [run.tags for run in source.newest(run_filter, limit) if _STUDY in run.tags]
        for tags in studies:
            if run_filter.experiment or (_SUITE not in tags and tags.get("llmtrack.experiment") != COMPARISON):
                return tags[_STUDY]
    # The suite's own run may be in another store, or not yet sent.
    return next((tags.get(_SUITE) or tags[_STUDY] for tags in studies), "")


def _taken_over(source: Source, study_id: str) -> dict[str, tuple[str, bool]]:
    """Return the earlier runs that a resumed study took over: scenario and baseline by run id."""
    for run in source.newest(RunFilter(kind="study", study_id=study_id)):
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
            earlier = json.loads(run.tags[TAKEN_OVER_TAG])
            return {str(run_id): (str(scenario), bool(baseline)) for run_id, (scenario, baseline) in earlier.items()}
    return {}


def _as_own(tracked: Runs, study_id: str, earlier: Mapping[str, tuple[str, bool]]) -> Runs:
    """Present the runs that a study took over as its own."""

    def own(run: Run) -> Run:
        scenario, baseline = earlier[run.run_id]
        return run.as_scenario(scenario, study_id=study_id, baseline=baseline)

    return Runs(own(run) if run.run_id in earlier else run for run in tracked)


def _ids_by_mlflow_name(source: Source, experiment: str) -> list[str]:
    """Return the MLflow experiment of that name, if no llmtrack experiment has it."""
    if source.newest(RunFilter(experiment)):
        return []  # The experiment exists, but the other filters exclude everything.
    ids = [number for number, name in source.names.items() if name == experiment]
    if ids:
        return ids
    newest = source.newest(RunFilter(kind="study"), _STUDIES_NAMED)
    known = {run.tags.get("llmtrack.experiment", "") for run in newest} | set(source.names.values())
    raise UsageError(f"there is no experiment {experiment!r}{_nearest(experiment, sorted(known - {''}))}")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or list(known)[:5]
    return f": did you mean {', '.join(near)}?" if near else ": nothing is tracked in this store yet"
