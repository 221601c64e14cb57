"""The single source of verdicts: every comparison of tracked runs in words uses this module.

For two runs and a metric: better, worse, no significant difference or inconclusive, with the interval of the ratio and
the warnings of either run. Minimum repeats, correction for multiple comparisons and comparable conditions are part of
it, and so is the command that measures more where a verdict is inconclusive.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.differences import (
    Difference,
    Verdict,
    build_difference,
    is_within_floor,
    judge,
    with_direction,
)
from llmtrack.decide.noise_floor import family_size, noise_floor_of, with_context, with_related_runs
from llmtrack.decide.selection import Pair, runs_of_pairs
from llmtrack.decide.significance import ALPHA
from llmtrack.host.formatting import list_some
from llmtrack.spec.scenario import DEFAULT_MODEL, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.tracked.run import FAILED, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.artifacts import samples_by_run

# Prefixes of the warnings about disturbances; a test compares them with those of the measuring side.
DISTURBED = ("the machine was busy:", "noisy:", "drift:")
_DISTURBANCES = dict(zip(DISTURBED, ("others took {}% of the CPU", "varied by {}%", "drifted by {}%"), strict=True))

# Safety factor on the time cap, so that the requested repeats also fit for slower arms.
_SLOWER_ARMS = 2.0
_MINIMA = re.compile(r" -P (min_repeats|max_seconds)=(\d+)")
# A standalone number, not one within a name (prompt_16, smollm2-135m, v1.2).
_NUMBER = re.compile(r"(?<![\w.:/#-])\d[\d,]*(?:\.\d+)?(?![\w.:/-]*[A-Za-z_/])")


# --- verdicts


def with_samples(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Read from the store what verdicts depend on, and add it to the runs.

    That is the raw samples of each finished run, the noise floor, and the size of its study's family of comparisons
    (`llmtrack.decide.noise_floor`). Without readable samples, the tracked spread counts.
    """
    samples = samples_by_run([run.run_id for run in runs.finished], tracking_uri, lenient=True)
    sampled = Runs(dataclasses.replace(run, samples=samples.get(run.run_id, {})) for run in runs)
    return with_context(sampled, with_related_runs(sampled, tracking_uri))


def with_samples_of_pairs(pairs: Sequence[Pair], tracking_uri: str | None) -> list[Pair]:
    """Add samples, noise floors and comparison families to the runs of pairs; see `with_samples`."""
    complete = {run.run_id: run for run in with_samples(runs_of_pairs(pairs), tracking_uri)}

    def completed(run: Run) -> Run:
        # A run may be listed under several names.
        evidence = complete[run.run_id]
        return dataclasses.replace(run, samples=evidence.samples, floors=evidence.floors, family=evidence.family)

    return [Pair(completed(pair.baseline), completed(pair.candidate)) for pair in pairs]


def difference_between(
    baseline: Run,
    candidate: Run,
    metric: str,
    *,
    across_work: bool = False,
    across_environments: bool = False,
    alpha: float = ALPHA,
) -> Difference:
    """Return the difference of a run from a baseline in a metric.

    It depends on the two runs and their studies, not on what else is compared. Raw samples count if `with_samples` has
    added them, else the tracked spreads.

    Args:
        across_work: whether different work is the question (a longer prompt).
        across_environments: also compare speed and memory of different machines or versions.
        alpha: accepted probability of a false alarm over all comparisons of a study.
    """
    values = baseline.number(metric), candidate.number(metric)

    def not_compared(verdict: Verdict, words: str) -> Difference:
        before, after = (math.nan if value is None else value for value in values)
        return Difference(metric, before, after, None, verdict=verdict, words=words)

    for run in (candidate, baseline):
        if not run.is_finished:
            return not_compared("failed" if run.status == FAILED else "missing", run.state)
    before, after = values
    if after is None and candidate.is_same_as:
        return not_compared("missing", f"not measured again: {candidate.text('reason')}")
    if before is None or after is None:
        sides = [side for side, value in (("baseline", before), ("candidate", after)) if value is None]
        return not_compared("missing", f"no {metric} of the {' and '.join(sides)}")
    if reason := why_not_comparable(baseline, candidate, metric, across_environments, across_work):
        return not_compared("not comparable", f"{metric} is not comparable: {reason}")
    samples, candidate_samples = (run.samples.get(metric, ()) for run in (baseline, candidate))
    spreads = baseline.spread(metric), candidate.spread(metric)
    known_spreads = (spreads[0], spreads[1]) if spreads[0] and spreads[1] else None
    tests, floor = family_size(baseline, candidate), noise_floor_of(metric, baseline, candidate)
    difference = build_difference(metric, before, after, samples, candidate_samples, known_spreads)
    judged = judge(difference, alpha, tests, floor)
    if judged.repeats_needed:
        judged = _as_searched(judged, baseline, candidate, floor)
    return dataclasses.replace(judged, doubts=(*named_warnings(baseline), *named_warnings(candidate)))


def _as_searched(difference: Difference, baseline: Run, candidate: Run, floor: float) -> Difference:
    """Return the difference of two runs with too few repeats as a search of `tune` decided it, if it did.

    It compares samples taken within seconds of each other, and stops once one is better: the few tracked repeats would
    be doubted afterwards. It decides on candidates of one search, in its objective.
    """
    ratio = difference.ratio
    objectives = {run.text("tuned_for") for run in (baseline, candidate)}
    if ratio is None or is_within_floor(ratio.value, floor):
        return difference
    if baseline.study_id != candidate.study_id or objectives != {difference.metric}:
        return difference
    decided = with_direction(difference, ratio)
    better, worse = (candidate, baseline) if decided.verdict == "better" else (baseline, candidate)
    if better.scenario not in worse.text("race_beaten_by").split(", "):
        return difference
    return dataclasses.replace(decided, words=f"{decided.words}, as the search found", repeats_needed=0)


# --- commands that measure more


def measure_command(run: Run, repeats: int = 0) -> str:
    """Return the command that measures a run's experiment again.

    Args:
        repeats: minimum repeats per scenario; 0 to keep the setting.
    """
    parameters = requested_parameters(run)
    # Experiments that only score or train have no repeats.
    if repeats and run.has("max_new_tokens"):
        repeats = max(repeats, int(run.number("min_repeats") or 0))
        parameters["min_repeats"] = str(repeats)
        seconds = repeats * _SLOWER_ARMS * (run.number("total_latency_s") or 0.0)
        if seconds > (run.number("max_seconds") or RepeatPolicy.max_seconds):
            parameters["max_seconds"] = str(math.ceil(seconds))
    return _run_command(run.text("experiment") or "EXPERIMENT", parameters)


def score_command(run: Run) -> str:
    """Return the command that scores a text with a timed run's model, in its recipe or in each precision it supports."""
    parameters = {
        "model": run.text("model_id") or run.text("model"),
        "revision": run.text("revision"),
        "device": run.text("device_requested"),
    }
    if is_quantized := run.text("quantization") not in ("", Variant.quantization):
        parameters["recipes"] = f"{run.text('backend')}/{run.text('quantization')}"
    else:
        parameters |= {"backend": run.text("backend"), "dtype": run.text("dtype_requested")}
    defaults = {"backend": Variant.backend, "device": Variant.device}
    return _run_command(
        "quantization" if is_quantized else "perplexity",
        {name: value for name, value in parameters.items() if value and value != defaults.get(name)},
    )


def _run_command(experiment: str, parameters: Mapping[str, str]) -> str:
    # Not `mlflow run .`, which needs the project's folder and knows no experiment of another package.
    words = ["llmtrack", "run", experiment]
    return shlex.join([*words, *(word for name, value in parameters.items() for word in ("-P", f"{name}={value}"))])


def merge_commands(commands: Iterable[str]) -> list[str]:
    """Deduplicate commands of `measure_command`; merge those that differ only in repeats or time to the largest."""
    merged: dict[str, dict[str, int]] = {}
    for command in commands:
        largest = merged.setdefault(_MINIMA.sub("", command), {})
        for name, value in _MINIMA.findall(command):
            largest[name] = max(int(value), largest.get(name, 0))
    return [
        " ".join([command, *(f"-P {name}={value}" for name, value in largest.items())])
        for command, largest in merged.items()
    ]


def requested_parameters(run: Run) -> dict[str, str]:
    """Return the non-default parameters to measure a run's experiment again.

    Runs of older versions do not record them: use the common parameters as far as params give them.
    """
    if run.asked:
        parameters: dict[str, str] = json.loads(run.asked)
        # Resuming would skip what is already measured.
        return {name: value for name, value in parameters.items() if name != "resume"}
    # Parameter: the param that records it, and its default.
    common = {
        "model": ("model", DEFAULT_MODEL),
        "revision": ("revision", ""),
        "device": ("device_requested", Variant.device),
        "max_new_tokens": ("max_new_tokens", str(GenerateTask.max_new_tokens)),
    }
    return {name: value for name, (param, default) in common.items() if (value := run.text(param)) not in ("", default)}


# --- warnings of the compared runs


def named_warnings(run: Run) -> tuple[str, ...]:
    """Return a run's warnings, each with the run's name."""
    return tuple(f"{run.name}: {line}" for line in run.warnings)


def is_disturbed(run: Run) -> bool:
    """Return whether a run's warnings report a disturbance: a busy machine, or repeats that vary or drift."""
    return any(line.startswith(DISTURBED) for line in run.warnings)


def disturbance(warnings: Iterable[str]) -> str:
    """Summarize a disturbance from a run's warnings: `varied by 72 %`; empty if there is none."""
    for line in warnings:
        for prefix, words in _DISTURBANCES.items():
            if line.startswith(prefix) and (shares := re.findall(r"(\d+)%", line)):
                return words.format(max(map(int, shares)))
    return ""


def doubt(run: Run) -> str:
    """Return ` (in doubt: varied by 72 %)` for a disturbed run, to append to its name or value; else an empty text."""
    words = disturbance(run.warnings)
    return f" (in doubt: {words})" if words else ""


def warning_kind(warning: str) -> str:
    """Mask the numbers of a warning."""
    return _NUMBER.sub("#", warning)


def warning_notes(runs: Iterable[Run], total: int) -> list[str]:
    """Return the warnings of some of the runs as notes, each kind once; see `group_warnings`."""
    warnings = [(run.name, line) for run in runs for line in run.warnings]
    return [f"read with care: {line}" for line in group_warnings(warnings, total)]


def group_doubts(differences: Iterable[Difference], runs: int) -> list[str]:
    """Return the warnings of compared runs, each kind once; see `group_warnings`."""
    lines = dict.fromkeys(line for difference in differences for line in difference.doubts)
    return group_warnings([(name, line) for name, _, line in (named.partition(": ") for named in lines)], runs)


def group_warnings(warnings: Iterable[tuple[str, str]], runs: int) -> list[str]:
    """Merge the warnings of a kind: `all 4 runs: the machine was busy: other programs took 87 to 92% ...`.

    Args:
        warnings: each with its run's name, in order.
        runs: total number of runs, with and without warnings.
    """
    kinds: dict[str, tuple[list[str], list[str]]] = {}
    for name, line in dict.fromkeys(warnings):
        names, lines = kinds.setdefault(warning_kind(line), ([], []))
        names.append(name)
        lines.append(line)
    return [f"{_subject(names, runs)}: {_with_ranges(lines)}" for names, lines in kinds.values()]


def _subject(names: Sequence[str], runs: int) -> str:
    distinct = list(dict.fromkeys(names))
    if len(distinct) == runs > 1:
        return "both runs" if runs == 2 else f"all {runs} runs"
    return list_some(distinct)


def _with_ranges(lines: Sequence[str]) -> str:
    """Merge lines of one kind, replacing each number by its range."""
    columns = [
        sorted(set(values), key=lambda text: float(text.replace(",", "")))
        for values in zip(*map(_NUMBER.findall, lines), strict=True)
    ]
    ranges = iter(values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}" for values in columns)
    return _NUMBER.sub(lambda match: next(ranges), lines[0])
