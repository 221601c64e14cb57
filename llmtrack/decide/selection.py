"""Select runs by id, study, tag, alias or branch, and pair those of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import require_texts
from llmtrack.tracked.frames import runs_of
from llmtrack.tracked.run import FINISHED, VARIANT, Run
from llmtrack.tracked.runs import Key, Runs, keys
from llmtrack.tracking.read.lookup import is_study_id, may_be_id, run_of_alias
from llmtrack.tracking.read.query import (
    of_scenario,
    runs_of_id,
    split_scenario,
    study_run,
    tracked_runs,
    why_empty,
)
from llmtrack.tracking.read.source import Source

if TYPE_CHECKING:
    import pandas as pd

SELECTOR_KINDS = "a run id, study:ID, latest, latest:EXPERIMENT, alias:NAME, branch:NAME, tag:KEY=VALUE"
Selection = Union[str, Sequence[str], "pd.DataFrame", Runs]
"""Selectors, rows from `llmtrack.runs`, or runs."""

BRANCH_TAG = schema.ENV_TAG_PREFIX + "git_branch"
_NAME = ("experiment", "scenario")
# Criteria for a counterpart, most important first.
_CHOSEN_BY = ("workload_id", "environment_id", *VARIANT)


def as_runs(selection: Selection, experiment: str | None, tracking_uri: str | None) -> Runs:
    """Return the selected runs.

    Raises:
        UsageError: rows have no ids or unreadable times, or a selector is invalid or matches nothing.
    """
    import pandas as pd

    if isinstance(selection, Runs):
        return selection
    if isinstance(selection, pd.DataFrame):
        if selection.index.name == "run_id":
            selection = selection.reset_index()
        if "run_id" not in selection.columns:
            raise UsageError("rows without the column run_id: give rows of llmtrack.runs")
        return runs_of(selection)
    return select_all(selection, experiment, tracking_uri)


def select(selector: str, experiment: str | None = None, tracking_uri: str | None = None) -> Runs:
    """Return the scenario runs that a selector matches, newest first.

    Args:
        selector: one of these:

            - a run id, or the 8 characters of it that `llmtrack runs` lists: that scenario's run, or all runs of the study
              whose run it is;
            - `study:ID`, or the id alone: the scenarios of a study, or of all studies of a suite;
            - `latest`: the newest suite, or the newest study outside of one; `latest:EXPERIMENT`: its newest study;
            - `alias:NAME`: the run with the alias (`llmtrack alias`), or its study; `alias:MODEL@ALIAS`: the run behind an
              alias in MLflow's model registry;
            - `branch:NAME`: finished runs of a git branch; a comparison takes the newest of each scenario;
            - `tag:KEY=VALUE`: finished runs with the tag, likewise.

            Append `#SCENARIO` to keep the runs of one scenario: `latest:precision#float32`.
        experiment: restrict to this llmtrack or MLflow experiment.
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.

    Raises:
        UsageError: the selector is invalid, or matches no run.
        TrackingError: the store cannot be read.
    """
    named, scenario = split_scenario(selector)
    runs = _matching_runs(named, experiment, tracking_uri)
    if not runs:
        names_study = is_study_id(named.removeprefix("study:")) or named.startswith("latest")
        in_progress = why_empty(named, tracking_uri) if names_study else ""
        raise UsageError(in_progress or f"{selector!r} matches no tracked scenario run{_hint(selector)}")
    return of_scenario(runs, scenario, named) if scenario else runs


def single_run_id(selector: str, tracking_uri: str | None = None) -> str:
    """Return the id of the one run that a selector matches: of a scenario, or of a study.

    Raises:
        UsageError: it matches several runs, or none.
        TrackingError: the store cannot be read.
    """
    named, scenario = split_scenario(selector)
    kind, colon, value = named.partition(":")
    if not scenario and may_be_id(named):
        return named
    if not scenario and kind == "alias" and colon:
        return run_of_alias(Source(tracking_uri), value)
    if not scenario and kind not in ("branch", "tag"):
        return study_run(named, tracking_uri).run_id
    runs = select(selector, tracking_uri=tracking_uri)
    if len(runs) > 1:
        raise UsageError(f"{selector!r} matches {len(runs)} runs: name one by its id (`llmtrack runs` lists them)")
    return runs[0].run_id


def as_selector(study: str) -> str:
    """Convert the value of `--study` to a selector."""
    return study if study.partition(":")[0] in ("latest", "alias", "study") else f"study:{study}"


def select_all(selectors: str | Sequence[str], experiment: str | None = None, tracking_uri: str | None = None) -> Runs:
    """Return the distinct runs that any of several selectors matches; see `select`."""
    names = require_texts("selector", selectors)
    if not names:
        raise UsageError(f"no selector is given: use {SELECTOR_KINDS}")
    runs = [run for name in names for run in select(name, experiment, tracking_uri)]
    return Runs(runs).first_of_each("run_id")


def _matching_runs(selector: str, experiment: str | None, uri: str | None) -> Runs:
    kind, _, value = selector.partition(":")
    if may_be_id(selector):
        return runs_of_id(selector, uri)
    if is_study_id(selector):
        return tracked_runs(experiment, study=selector, tracking_uri=uri)
    if kind == "latest":
        return tracked_runs(None if value else experiment, study=selector, tracking_uri=uri)
    if kind == "study" and value:
        return tracked_runs(experiment, study=value, tracking_uri=uri)
    if kind == "alias" and value:
        return runs_of_id(run_of_alias(Source(uri), value, experiment), uri)
    if kind == "branch" and value:
        return tracked_runs(experiment, status=FINISHED, tracking_uri=uri, tags={BRANCH_TAG: value})
    if kind == "tag" and "=" in value:
        key, _, text = value.partition("=")
        return tracked_runs(experiment, status=FINISHED, tracking_uri=uri, tags={key: text})
    raise UsageError(f"invalid selector {selector!r}: use {SELECTOR_KINDS}")


def _hint(selector: str) -> str:
    if selector.startswith("branch:"):
        return f" (runs of a branch carry the tag {BRANCH_TAG}; only finished ones count)"
    return "" if not selector.startswith("tag:") else " (only finished runs count)"


@dataclass(frozen=True)
class Pair:
    """Two runs to compare."""

    baseline: Run
    candidate: Run


def runs_of_pairs(pairs: Sequence[Pair]) -> Runs:
    """Return the distinct runs of pairs; of a run listed under several names, the last."""
    return Runs({run.run_id: run for pair in pairs for run in (pair.baseline, pair.candidate)}.values())


def pair_runs(baselines: Runs, candidates: Runs) -> tuple[list[Pair], list[str]]:
    """Pair runs, newest first, and name the scenarios without a counterpart.

    A baseline of one scenario is paired with every candidate. Otherwise scenarios are paired by name. Of several runs
    of one cell (see `llmtrack.tracked.runs`) the newest is taken, whatever its work; of the baselines, the newest of
    the same work and machine, preferably of the same variant.

    Raises:
        UsageError: no two different runs can be paired.
    """
    finished = baselines.finished
    if not finished:
        raise UsageError(
            f"the baseline has no finished run{f': {baselines[0].name} {baselines[0].state}' if baselines else ''}"
        )
    if not candidates:
        raise UsageError("the candidate has no runs: there is nothing to compare")
    names = keys(finished, _NAME)
    configuration = finished.configuration()
    pairs, unmatched = [], []
    newest = candidates.newest_of_each(across_work=True).in_order_of_time()
    for name, candidate in zip(keys(newest, _NAME), newest, strict=True):
        eligible = finished if len(set(names)) == 1 else _runs_named(finished, names, name)
        if not eligible:
            unmatched.append(candidate.name)
            continue
        baseline = counterpart(eligible, candidate, configuration)
        if baseline.run_id != candidate.run_id:
            pairs.append(Pair(baseline, candidate))
    if not pairs and unmatched:
        known = ", ".join(sorted(set(finished.scenarios))[:5])
        raise UsageError(f"no scenario is in both: the baseline has {known}; the candidate {', '.join(unmatched[:5])}")
    if not pairs:
        raise UsageError("baseline and candidate are the same run: there is nothing to compare")
    return pairs, unmatched


def counterpart(baselines: Sequence[Run], candidate: Run, configuration: Sequence[str]) -> Run:
    """Choose the baseline run to compare a candidate with.

    It is the newest of the same work on the same machine, preferably of the same configuration (`Runs.configuration`),
    else of the same variant; else the newest of the same work, else the newest. Baselines are given newest first.
    """
    for names in (_CHOSEN_BY, _CHOSEN_BY[:2], _CHOSEN_BY[:1]):
        alike = [baseline for baseline in baselines if baseline.agrees(candidate, *names)]
        if alike:
            return next((baseline for baseline in alike if baseline.agrees(candidate, *configuration)), alike[0])
    return baselines[0]


def _runs_named(runs: Runs, names: Sequence[Key], name: Key) -> list[Run]:
    """Return the runs of a scenario, of the same experiment if possible; a name is experiment and scenario."""
    same_scenario = [(run, other) for run, other in zip(runs, names, strict=True) if other[1] == name[1] != ""]
    return [run for run, other in same_scenario if other == name] or [run for run, _ in same_scenario]
