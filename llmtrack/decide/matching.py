"""Pair the candidates' runs with the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.errors import UsageError
from llmtrack.tracked.run import VARIANT, Run
from llmtrack.tracked.runs import Key, Runs, keys

_NAME = ("experiment", "scenario")
# Criteria for a counterpart, most important first.
_CHOSEN_BY = ("workload_id", "environment_id", *VARIANT)


@dataclass(frozen=True)
class Pair:
    """Two runs to compare."""

    baseline: Run
    candidate: Run


def match(baselines: Runs, candidates: Runs) -> tuple[list[Pair], list[str]]:
    """Pair runs, and name the scenarios without a counterpart.

    A baseline of one scenario is paired with every candidate. Otherwise scenarios are paired by name. Of several runs
    of one cell (see `llmtrack.tracked.runs`) the newest is taken, whatever its work; of the baselines, the newest of
    the same work and machine, preferably of the same variant.

    Args:
        baselines: runs, newest first.
        candidates: likewise.

    Raises:
        UsageError: no two different runs can be paired.
    """
    finished = baselines.finished
    if not finished:
        raise UsageError(f"the baseline has no finished run{_why(baselines)}")
    named = keys(finished, _NAME)
    configured_by = finished.configuration()
    pairs, unmatched = [], []
    asked = candidates.newest_of_each(across_work=True).in_order_of_time()
    for name, candidate in zip(keys(asked, _NAME), asked, strict=True):
        there = finished if len(set(named)) == 1 else _of_the_same_name(finished, named, name)
        if not there:
            unmatched.append(candidate.name)
            continue
        baseline = counterpart(there, candidate, configured_by)
        if baseline.run_id != candidate.run_id:
            pairs.append(Pair(baseline, candidate))
    if not pairs and unmatched:
        known = ", ".join(sorted(set(finished.scenarios))[:5])
        raise UsageError(f"no scenario is in both: the baseline has {known}; the candidate {', '.join(unmatched[:5])}")
    if not pairs:
        raise UsageError("baseline and candidate are the same run: there is nothing to compare")
    return pairs, unmatched


def counterpart(baselines: Sequence[Run], run: Run, configured_by: Sequence[str]) -> Run:
    """Choose the baseline run to compare a run with.

    It is the newest of the same work on the same machine, preferably of the same configuration, else of the same
    variant; else the newest of the same work, else the newest.

    Args:
        baselines: runs, newest first.
        configured_by: result of `Runs.configuration`.
    """
    for names in (_CHOSEN_BY, _CHOSEN_BY[:2], _CHOSEN_BY[:1]):
        alike = [each for each in baselines if each.agrees(run, *names)]
        if alike:
            return next((each for each in alike if each.agrees(run, *configured_by)), alike[0])
    return baselines[0]


def _of_the_same_name(runs: Runs, named: Sequence[Key], candidate: Key) -> list[Run]:
    """Return the runs of the candidate's scenario, of the same experiment if possible.

    Args:
        named: experiment and scenario of each run.
        candidate: its experiment and scenario.
    """
    alike = [(run, name) for run, name in zip(runs, named, strict=True) if name[1] == candidate[1] != ""]
    return [run for run, name in alike if name == candidate] or [run for run, _ in alike]


def _why(runs: Runs) -> str:
    return f": {runs[0].name} {runs[0].state}" if runs else ""
