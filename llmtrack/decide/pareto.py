"""The Pareto front: scenarios that no other dominates, by the verdicts of `llmtrack.decide.verdicts`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.differences import Difference, Verdict, build_difference, judge
from llmtrack.decide.noise_floor import with_context
from llmtrack.decide.verdicts import difference_between, measure_command
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

Position = Literal["on", "off", "open", "missing"]


@dataclass(frozen=True)
class Standing:
    """Position of a scenario relative to the front.

    Attributes:
        position: `on` the front; `off` it, because another dominates it; `open` if inconclusive; `missing` a value.
        command: measures more if that could settle it; else empty.
        dominated_by: names of scenarios.
    """

    position: Position
    why: str
    command: str = ""
    dominated_by: tuple[str, ...] = ()


def pareto_front(runs: Runs, metrics: Sequence[str]) -> list[Standing]:
    """Compare each scenario with all others in some metrics; return their positions in order of the runs.

    Quality metrics are compared as they are: `llmtrack.decide.candidates` leaves out other texts.

    Args:
        runs: comparable runs, such as those of `gather_candidates`; raw samples count if `with_samples` has added them.
    """
    runs = with_context(runs)
    complete = [all(map(run.has, metrics)) for run in runs]
    return [
        _standing(run, [rival for j, rival in enumerate(runs) if complete[j] and j != i], metrics)
        for i, run in enumerate(runs)
    ]


def position_of(verdicts: Mapping[int, Collection[Verdict]]) -> tuple[Position, list[int]]:
    """Return a scenario's position, and the rivals that decide it.

    It is off the front if a rival is better in one metric and better or not different in all; open if a rival could be
    so as far as is known.

    Args:
        verdicts: of each rival against it, one per metric.
    """
    never_worse = {rival: set(of_rival) for rival, of_rival in verdicts.items() if "worse" not in of_rival}
    dominating = [
        rival for rival, of_rival in never_worse.items() if "better" in of_rival and of_rival <= {"better", "same"}
    ]
    if dominating:
        return "off", dominating
    unclear = [rival for rival, of_rival in never_worse.items() if not of_rival <= {"better", "same"}]
    return ("open", unclear) if unclear else ("on", [])


def _standing(run: Run, rivals: Sequence[Run], metrics: Sequence[str]) -> Standing:
    for name in metrics:
        if not run.has(name):
            return Standing("missing", f"no {name}")
    differences: dict[int, list[Difference]] = {index: [] for index in range(len(rivals))}
    # Cheap checks first: a rival that is worse in one metric cannot dominate, whatever the others say.
    for name in sorted(metrics, key=lambda name: schema.metric(name).sureness == "sampled"):
        remaining = list(differences)
        in_metric = _differences_in(name, run, [rivals[index] for index in remaining])
        for index, difference in zip(remaining, in_metric, strict=True):
            differences[index].append(difference)
            if difference.verdict == "worse":
                del differences[index]
    position, deciding = position_of(
        {i: [difference.verdict for difference in of_rival] for i, of_rival in differences.items()}
    )
    if position == "on":
        return Standing(position, "on the front")
    names = tuple(rivals[index].name for index in deciding)
    if position == "off":
        return Standing(position, f"beaten by {', '.join(names)}", dominated_by=names)
    unclear = [
        difference for i in deciding for difference in differences[i] if difference.verdict not in ("better", "same")
    ]
    repeats = max(difference.repeats_needed for difference in unclear)
    why = f"inconclusive against {', '.join(names)} ({unclear[0].metric}: {unclear[0].words})"
    return Standing(position, why, measure_command(run, repeats) if repeats else "")


def _differences_in(metric: str, run: Run, rivals: Sequence[Run]) -> list[Difference]:
    if not schema.metric(metric).of_text:
        return [difference_between(run, rival, metric) for rival in rivals]
    return [judge(_quality_difference(metric, run.metrics[metric], rival.metrics[metric])) for rival in rivals]


def _quality_difference(metric: str, baseline: float, candidate: float) -> Difference:
    """Compare a quality metric; 0 (the divergence of the reference from itself) has an order but no ratio."""
    if min(baseline, candidate) > 0:
        return build_difference(metric, baseline, candidate)
    better: Verdict = "better" if (candidate > baseline) == (schema.metric(metric).better == "higher") else "worse"
    return Difference(metric, baseline, candidate, None, verdict="same" if baseline == candidate else better)
