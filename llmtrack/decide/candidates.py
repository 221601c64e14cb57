"""Join speed, quality and memory of measured scenarios into the candidates of a choice.

Speed and quality may come from one run or from two runs of the same variant (the loaded model). Only comparable runs
are kept: one workload, one environment, one perplexity convention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmtrack import metrics as schema
from llmtrack.decide.comparability import CONVENTION, scored_key
from llmtrack.errors import UsageError
from llmtrack.host.formatting import plural, significant
from llmtrack.tracked.run import LOADED, Run
from llmtrack.tracked.runs import Key, Runs, keys

SPEED, QUALITY, MEMORY = "tokens_per_sec", "perplexity", "peak_memory_mib"
# What all candidates share, and how the runs that do not are described.
_SHARED = {
    "model_id": "of another model",
    "workload_id": "of another workload",
    "environment_id": "measured in another environment",
}


@dataclass(frozen=True)
class Candidates:
    """Scenarios to choose among.

    Attributes:
        runs: one per timed scenario, with its quality, in order of time.
        notes: what was left out, and why.
        scored: runs with the quality, timed or not.
        reference: determines model, workload and machine.
    """

    runs: Runs
    notes: tuple[str, ...]
    scored: Runs
    reference: Run | None = None


def gather_candidates(runs: Runs, speed: str = SPEED, quality: str = QUALITY) -> Candidates:
    """Join the timed scenarios with their quality; keep the newest run of each configuration.

    Args:
        speed: metric that marks a timed run.
        quality: metric to join.

    Raises:
        UsageError: nothing was timed.
    """
    finished = runs.finished.where(lambda run: run.kind == "scenario").in_order_of_time()
    timed = finished.measured(speed)
    if not finished:
        raise UsageError(
            "no finished scenario matches: widen the filters, or run an experiment first (llmtrack run precision)"
        )
    if not timed:
        experiments = " and ".join(sorted({run.experiment for run in finished} - {""}))
        raise UsageError(
            f"no finished run{f' of {experiments}' if experiments else ''} has {speed}: choose a study that measured it, "
            "such as --study latest:precision, or measure one: llmtrack run precision"
        )
    notes: list[str] = []
    reference = reference_of(timed)
    for name, description in _SHARED.items():
        timed = _agreeing(timed, reference, (name,), description, notes)
    # Runs without a model, from earlier versions, are taken to be of the reference's model.
    scored = finished.measured(quality).where(lambda run: run.agrees(reference, "model_id"))
    scored = scored.newest_of_each(across_work=True)
    if scored:
        standard = _scoring_standard(scored, reference, quality)
        scored = _agreeing(scored, standard, CONVENTION, f"whose {quality} is of another convention", notes)
        text = scored_key(standard, quality)
        same_text = scored.where(lambda run: scored_key(run, quality) == text)
        _note_left_out(scored, same_text, f"whose {quality} is of other tokens or another text", notes)
        scored = same_text
    timed = _newest_of_each_configuration(timed, speed, notes)
    return Candidates(_with_quality(timed, scored, quality, notes), tuple(notes), scored, reference)


def reference_of(timed: Runs) -> Run:
    """Return the run that determines model, workload and machine of the choice.

    It is the baseline of the newest study that measured another loaded model beside it; else of the newest that
    measured anything beside it; else of the newest; else the newest run. At least one run must be given, in order of time.
    """
    cells = keys(timed, ("study_id", *_SHARED))
    runs_of_cell = Counter(cells)
    models_of_cell = Counter(cell for cell, _ in dict.fromkeys(zip(cells, keys(timed, LOADED), strict=True)))
    is_baseline = [bool(run.baseline) for run in timed]
    any_run = [True] * len(cells)
    for eligible, counts in (
        (is_baseline, models_of_cell),
        (is_baseline, runs_of_cell),
        (any_run, models_of_cell),
        (is_baseline, None),
    ):
        rows = [row for row, cell in enumerate(cells) if eligible[row] and (counts is None or counts[cell] > 1)]
        if rows:
            # A study measures its subject first.
            return timed[next(row for row in rows if cells[row][0] == cells[rows[-1]][0])]
    return timed[-1]


def _scoring_standard(scored: Runs, reference: Run, quality: str) -> Run:
    """Return the run whose text and convention the others must share: the newest scored one of the reference's model,
    or of any; preferably scored alike with another model.
    """
    conventions = [(*scored_key(run, quality), *key) for run, key in zip(scored, keys(scored, CONVENTION), strict=True)]
    models_scored = Counter(key for key, _ in dict.fromkeys(zip(conventions, keys(scored, LOADED), strict=True)))
    of_reference = [(run, key) for run, key in zip(scored, conventions, strict=True) if run.agrees(reference, *LOADED)]
    shared = [run for run, key in of_reference if models_scored[key] > 1]
    return (shared or [run for run, _ in of_reference] or list(scored))[-1]


def _newest_of_each_configuration(timed: Runs, speed: str, notes: list[str]) -> Runs:
    """Keep the newest of several runs of one configuration, across studies, experiments and scenario names.

    Otherwise the luckiest run of a configuration would compete as a candidate. Within a study, names distinguish
    scenarios.
    """
    # All runs share one workload, and the scoring convention does not affect timing.
    configurations = keys(timed, timed.configuration(across_work=True))
    groups: list[tuple[Key, Key, list[Run]]] = []
    # From the newest on, so that each older run finds its replacement.
    for run, configuration, cell in reversed(
        list(zip(timed, configurations, timed.cells(across_work=True), strict=True))
    ):
        for its_configuration, its_cell, group in groups:
            if its_cell == cell or (its_configuration == configuration and group[0].study_id != run.study_id):
                group.append(run)
                break
        else:
            groups.append((configuration, cell, [run]))
    for _, _, (newest, *earlier) in groups:
        if earlier:
            values = ", ".join(significant(run.metrics[speed]) for run in earlier)
            notes.append(
                f"{newest.name} was measured {len(earlier) + 1} times in one configuration: the newest counts "
                f"({speed} {significant(newest.metrics[speed])}; before: {values})"
            )
    newest_ids = {group[0].run_id for _, _, group in groups}
    return timed.where(lambda run: run.run_id in newest_ids)


def _with_quality(timed: Runs, scored: Runs, quality: str, notes: list[str]) -> Runs:
    """Add quality to timed runs: from the run itself, else from the runs of its variant."""
    of_run = {run.run_id: run.metrics[quality] for run in scored}
    of_variant: dict[Key, list[float]] = {}
    for run, variant in zip(scored, keys(scored, LOADED), strict=True):
        of_variant.setdefault(variant, []).append(run.metrics[quality])
    joined = []
    for run, variant in zip(timed, keys(timed, LOADED), strict=True):
        values = [of_run[run.run_id]] if run.run_id in of_run else of_variant.get(variant, [])
        metrics = {name: value for name, value in run.metrics.items() if name != quality}
        if values and max(values) <= min(values) * (1 + schema.metric(quality).tolerance):
            metrics[quality] = values[-1]
        elif values:
            # The models differ in something that the variant does not record, such as recipe settings.
            notes.append(f"{run.name} has no {quality} of its own, and the runs of its variant disagree")
        joined.append(replace(run, metrics=metrics))
    return Runs(joined)


def _agreeing(runs: Runs, standard: Run, names: Sequence[str], description: str, notes: list[str]) -> Runs:
    """Keep the runs that agree with `standard` on some values; note how many are left out."""
    agreeing = runs.where(lambda run: run.agrees(standard, *names))
    _note_left_out(runs, agreeing, description, notes)
    return agreeing


def _note_left_out(runs: Runs, remaining: Runs, description: str, notes: list[str]) -> None:
    if count := len(runs) - len(remaining):
        notes.append(
            f"{plural(count, 'run')} {description} {'is' if count == 1 else 'are'} left out: choose runs by --study, "
            "--experiment or --model"
        )
