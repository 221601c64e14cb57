"""Join speed, quality and memory of measured scenarios into the candidates of a choice.

Speed and quality may come from one run or from two runs of the same variant (the loaded model). Only comparable runs
are kept: one workload, one environment, one perplexity convention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmtrack import metrics as schema
from llmtrack.decide.verdicts import CONVENTION, scored_key
from llmtrack.errors import UsageError
from llmtrack.host.formatting import plural, significant
from llmtrack.tracked.run import LOADED, Run
from llmtrack.tracked.runs import Key, Runs, keys

# Shared by all candidates.
_SAME = ("model_id", "workload_id", "environment_id")
SPEED, QUALITY, MEMORY = "tokens_per_sec", "perplexity", "peak_memory_mib"


@dataclass(frozen=True)
class Points:
    """Scenarios to choose among.

    Attributes:
        runs: one per timed scenario, with its quality, in order of time.
        notes: what was left out, and why.
        scored: runs with the quality under the common convention, timed or not.
        reference: the run that determines model, workload and machine.
    """

    runs: Runs
    notes: tuple[str, ...]
    scored: Runs
    reference: Run | None = None


def gather_points(runs: Runs, speed: str = SPEED, quality: str = QUALITY) -> Points:
    """Join the timed scenarios with their quality; keep the newest run of each configuration and note it.

    Args:
        speed: metric that marks a timed run.
        quality: metric to join.

    Raises:
        UsageError: nothing was timed.
    """
    finished = runs.finished.where(lambda run: run.kind == "scenario").in_order_of_time()
    timed = finished.measured(speed)
    if not timed:
        of = " and ".join(sorted({run.experiment for run in finished} - {""}))
        raise UsageError(
            f"no finished run{f' of {of}' if of else ''} has {speed}: choose a study that measured it, such as "
            "--study latest:precision, or measure one: mlflow run . -e precision"
        )
    notes: list[str] = []
    reference = reference_of(timed)
    timed = _like(timed, reference, ("model_id",), "of another model", notes)
    timed = _like(timed, reference, ("workload_id",), "of another workload", notes)
    timed = _like(timed, reference, ("environment_id",), "measured in another environment", notes)
    # Runs without a model, from earlier versions, are taken to be of the reference's model.
    scored = _like(finished.measured(quality), reference, ("model_id",), "of another model", [])
    scored = scored.newest_of_each(across_work=True)
    if scored:
        standard = _scored_like(scored, reference, quality)
        scored = _like(scored, standard, CONVENTION, f"whose {quality} is of another convention", notes)
        text = scored_key(standard, quality)
        same_text = scored.where(lambda run: scored_key(run, quality) == text)
        _tell_left(scored, same_text, f"whose {quality} is of other tokens or another text", notes)
        scored = same_text
    timed = _newest(timed, speed, notes)
    return Points(_joined(timed, scored, quality, notes), tuple(notes), scored, reference)


def reference_of(timed: Runs) -> Run:
    """Return the run that determines model, workload and machine of the choice.

    It is the baseline of the newest study that measured another loaded model beside it; else of the newest that
    measured anything beside it; else of the newest; else the newest run.

    Args:
        timed: runs in order of time, at least one.
    """
    cells = keys(timed, ("study_id", *_SAME))
    measured = Counter(cells)
    loaded = Counter(cell for cell, _ in dict.fromkeys(zip(cells, keys(timed, LOADED), strict=True)))
    base = [bool(run.baseline) for run in timed]
    tiers = [(base, loaded), (base, measured), ([True] * len(cells), loaded), (base, None)]
    for wanted, counted in tiers:
        rows = [row for row, cell in enumerate(cells) if wanted[row] and (counted is None or counted[cell] > 1)]
        if rows:
            # A study measures its subject first.
            return timed[next(row for row in rows if cells[row][0] == cells[rows[-1]][0])]
    return timed[-1]


def _scored_like(scored: Runs, reference: Run, quality: str) -> Run:
    """Return the run whose text and convention the others must share: the newest scored run of the reference, or of
    any.
    """
    keyed = [(*scored_key(run, quality), *key) for run, key in zip(scored, keys(scored, CONVENTION), strict=True)]
    shared = Counter(key for key, _ in dict.fromkeys(zip(keyed, keys(scored, LOADED), strict=True)))
    own = [(run, key) for run, key in zip(scored, keyed, strict=True) if run.agrees(reference, *LOADED)]
    compared = [run for run, key in own if shared[key] > 1]
    return (compared or [run for run, _ in own] or list(scored))[-1]


def _newest(timed: Runs, speed: str, notes: list[str]) -> Runs:
    """Keep the newest of several runs of one configuration, across studies, experiments and scenario names.

    Otherwise the luckiest run of a configuration would compete as a candidate. Within a study, names distinguish
    scenarios.
    """
    # All runs share one workload, and the scoring convention does not affect timing.
    asked = keys(timed, timed.configuration(across_work=True))
    kept: list[tuple[Key, Key, list[Run]]] = []
    # From the newest on, so that each older run finds its replacement.
    for run, own, cell in reversed(list(zip(timed, asked, timed.cells(across_work=True), strict=True))):
        newer = (
            before
            for theirs, other, before in kept
            if other == cell or (theirs == own and before[0].study_id != run.study_id)
        )
        if (before := next(newer, None)) is not None:
            before.append(run)
        else:
            kept.append((own, cell, [run]))
    for _, _, (newest, *earlier) in kept:
        if earlier:
            values = ", ".join(significant(run.metrics[speed]) for run in earlier)
            notes.append(
                f"{newest.name} was measured {len(earlier) + 1} times in one configuration: the newest counts "
                f"({speed} {significant(newest.metrics[speed])}; before: {values})"
            )
    newest_ids = {found[0].run_id for _, _, found in kept}
    return timed.where(lambda run: run.run_id in newest_ids)


def _joined(timed: Runs, scored: Runs, quality: str, notes: list[str]) -> Runs:
    """Add quality to timed runs: from the run itself, else from the runs of its variant."""
    own = {run.run_id: run.metrics[quality] for run in scored}
    of_variant: dict[Key, list[float]] = {}
    for run, variant in zip(scored, keys(scored, LOADED), strict=True):
        of_variant.setdefault(variant, []).append(run.metrics[quality])
    joined = []
    for run, variant in zip(timed, keys(timed, LOADED), strict=True):
        found = [own[run.run_id]] if run.run_id in own else of_variant.get(variant, [])
        metrics = {name: value for name, value in run.metrics.items() if name != quality}
        # The models differ in something that the variant does not record, such as recipe settings.
        if found and max(found) <= min(found) * (1 + schema.metric(quality).tolerance):
            metrics[quality] = found[-1]
        elif found:
            notes.append(f"{run.name} has no {quality} of its own, and the runs of its variant disagree")
        joined.append(replace(run, metrics=metrics))
    return Runs(joined)


def _like(runs: Runs, standard: Run, names: Sequence[str], what: str, notes: list[str]) -> Runs:
    """Keep the runs that agree with `standard` on some values; note how many are left out."""
    kept = runs.where(lambda run: run.agrees(standard, *names))
    _tell_left(runs, kept, what, notes)
    return kept


def _tell_left(runs: Runs, kept: Runs, what: str, notes: list[str]) -> None:
    if left := len(runs) - len(kept):
        notes.append(
            f"{plural(left, 'run')} {what} {'is' if left == 1 else 'are'} left out: choose runs by --study, --experiment or --model"
        )
