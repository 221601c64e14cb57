"""The Pareto front: scenarios that no other dominates, by the verdicts of `llmtrack.decide.verdicts`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.differences import Difference, Verdict, difference, judge
from llmtrack.decide.noise_floor import in_context
from llmtrack.decide.verdicts import measure_more, tell
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

Position = Literal["on", "off", "open", "missing"]


@dataclass(frozen=True)
class Standing:
    """Position of a scenario relative to the front.

    Attributes:
        place: `on` the front; `off` it, because another dominates it; `open` if inconclusive; `missing` a value.
        why: explanation.
        measure: command to measure more if that could settle it; else empty.
        by: scenarios that dominate it.
    """

    place: Position
    why: str
    measure: str = ""
    by: tuple[str, ...] = ()


def place(against: Mapping[int, Collection[Verdict]]) -> tuple[Position, list[int]]:
    """Return a scenario's position, and the others that decide it.

    It is off the front if another is better in one metric and better or not different in all; open if another could be
    so as far as is known.

    Args:
        against: verdicts of each other scenario against it, one per metric.
    """
    never_worse = {index: set(found) for index, found in against.items() if "worse" not in found}
    beaten_by = [i for i, found in never_worse.items() if "better" in found and found <= {"better", "same"}]
    if beaten_by:
        return "off", beaten_by
    unclear = [index for index, found in never_worse.items() if not found <= {"better", "same"}]
    return ("open", unclear) if unclear else ("on", [])


def pareto_front(runs: Runs, respects: Sequence[str]) -> list[Standing]:
    """Return the position of each scenario, in order of the runs.

    Each is compared with all others. Quality metrics are compared as they are: `llmtrack.decide.candidates` leaves out
    other texts.

    Args:
        runs: comparable runs, such as those of `gather_points`; raw samples count if `with_samples` has added them.
        respects: metrics of the front.
    """
    rows = in_context(runs)
    complete = [all(map(run.has, respects)) for run in rows]
    return [
        _standing(run, [other for j, other in enumerate(rows) if complete[j] and j != i], respects)
        for i, run in enumerate(rows)
    ]


def _standing(run: Run, others: Sequence[Run], respects: Sequence[str]) -> Standing:
    for name in respects:
        if not run.has(name):
            return Standing("missing", f"no {name}")
    found: dict[int, list[Difference]] = {index: [] for index in range(len(others))}
    # Cheap checks first: a rival that is worse in one metric cannot dominate, whatever the others say.
    for name in sorted(respects, key=lambda name: schema.metric(name).sureness == "sampled"):
        rivals = list(found)
        differences = _tell(run, [others[index] for index in rivals], name)
        for index, each in zip(rivals, differences, strict=True):
            found[index].append(each)
            if each.verdict == "worse":
                del found[index]
    where, which = place({index: [each.verdict for each in differences] for index, differences in found.items()})
    by = tuple(others[index].name for index in which)
    names = ", ".join(by)
    if where == "off":
        return Standing(where, f"beaten by {names}", by=by)
    if where == "on":
        return Standing(where, "on the front")
    unclear = [each for index in which for each in found[index] if each.verdict not in ("better", "same")]
    needed = max(each.repeats_needed for each in unclear)
    command = measure_more(run, needed) if needed else ""
    return Standing(where, f"inconclusive against {names} ({unclear[0].metric}: {unclear[0].words})", command)


def _tell(run: Run, others: Sequence[Run], metric: str) -> list[Difference]:
    if not schema.metric(metric).of_text:
        return tell(run, others, metric)
    return judge([_of_text(metric, run.metrics[metric], other.metrics[metric]) for other in others])


def _of_text(metric: str, own: float, other: float) -> Difference:
    """Compare a quality metric; 0 (the divergence of the reference from itself) has an order but no ratio."""
    if min(own, other) > 0:
        return difference(metric, own, other)
    better: Verdict = "better" if (other > own) == (schema.metric(metric).better == "higher") else "worse"
    return Difference(metric, own, other, None, verdict="same" if own == other else better)
