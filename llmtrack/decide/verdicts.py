"""The one rule by which tracked runs are told apart: whatever says a comparison in words asks here.

Of two runs and a metric it says better, worse, no different or inconclusive, with the interval of the ratio and the doubts
that either run carries itself. Enough repeats, a correction for many comparisons and equal conditions are part of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence

from llmtrack.decide.comparability import why_not
from llmtrack.decide.differences import Difference, Verdict, difference, in_figures, judge
from llmtrack.decide.family import comparisons, in_context
from llmtrack.decide.noise_floor import floor_in_words, floor_of, is_within, measured_there
from llmtrack.decide.significance import ALPHA
from llmtrack.spec.scenario import DEFAULT_MODEL, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.tracked.run import FAILED, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.artifacts import samples_by_run

# How the warnings begin that say so; a test holds them to what the measuring side says.
DISTURBED = ("the machine was busy:", "noisy:", "drift:")
_DISTURBANCES = dict(zip(DISTURBED, ("others took {} % of the CPU", "varied by {} %", "drifted by {} %"), strict=True))

# Repeats that are asked for must fit into the cap on time, of arms that are slower than the one that is known, too.
_ROOM = 2.0
_LEAST = re.compile(r" -P (min_repeats|max_seconds)=(\d+)")


def tell(
    baseline: Run,
    candidates: Iterable[Run],
    metric: str,
    *,
    across_work: bool = False,
    alpha: float = ALPHA,
) -> list[Difference]:
    """Say how candidates differ from a baseline in a metric, in their order.

    Args:
        baseline: a run; its raw samples count if `with_samples` has added them, or else what is
            tracked of its spread.
        candidates: others.
        metric: name of the metric.
        across_work: whether other work is what is asked about (a longer prompt).
        alpha: chance of a false alarm that is accepted, over all comparisons of a study together.
    """
    return tell_pairs(
        [(baseline, candidate) for candidate in candidates],
        metric,
        across_work=across_work,
        alpha=alpha,
    )


def tell_pairs(
    pairs: Sequence[tuple[Run, Run]],
    metric: str,
    *,
    across_work: bool = False,
    across_environments: bool = False,
    alpha: float = ALPHA,
) -> list[Difference]:
    """Say how the second of each pair differs from the first in a metric; see `tell`.

    What is said of a pair depends on its two runs and their studies, and not on what else is asked.

    Args:
        pairs: of runs.
        metric: name of the metric.
        across_work: see `tell`.
        across_environments: compare speed and memory of different machines or versions too.
        alpha: see `tell`.
    """
    told = []
    for pair in pairs:
        found = _difference(*pair, metric, across_work, across_environments)
        if found.verdict == "unknown":
            (found,) = judge([found], alpha, comparisons(*pair))
        told.append(_above_floor(found, floor_of(metric, *pair)))
    return told


def own_warnings(run: Run) -> tuple[str, ...]:
    """Return the warnings that a run carries itself, each with the run's name."""
    return tuple(f"{run.name}: {line}" for line in run.warnings)


def is_disturbed(run: Run) -> bool:
    """Return whether a run's own warnings say that its speed was disturbed: the machine was busy, repeats vary or drift."""
    return any(line.startswith(DISTURBED) for line in run.warnings)


def disturbance(warnings: Iterable[str]) -> str:
    """Return in a few words how a run was disturbed, by its warnings: `varied by 72 %`; empty if it was not."""
    for line in warnings:
        for start, words in _DISTURBANCES.items():
            if line.startswith(start) and (shares := re.findall(r"(\d+)%", line)):
                return words.format(max(map(int, shares)))
    return ""


def doubt(run: Run) -> str:
    """Return ` (in doubt: varied by 72 %)` of a run that was disturbed, to stand behind its name or figure; else nothing."""
    how = disturbance(run.warnings)
    return f" (in doubt: {how})" if how else ""


def measure_more(run: Run, repeats: int = 0) -> str:
    """Return the command that measures a run's experiment again.

    Args:
        run: a run of the experiment.
        repeats: how often each scenario is to be repeated at least; 0: as before.
    """
    words = [
        "mlflow",
        "run",
        ".",
        "-e",
        run.text("experiment") or "EXPERIMENT",
        "--env-manager",
        "local",
    ]
    given = parameters_asked(run)
    # What only scores or trains repeats nothing, and takes no such parameter.
    if repeats and run.has("max_new_tokens"):
        wanted = max(repeats, int(run.number("min_repeats") or 0))
        given["min_repeats"] = str(wanted)
        seconds = wanted * _ROOM * (run.number("total_latency_s") or 0.0)
        if seconds > (run.number("max_seconds") or RepeatPolicy.max_seconds):
            given["max_seconds"] = str(math.ceil(seconds))
    return shlex.join([*words, *(word for name, value in given.items() for word in ("-P", f"{name}={value}"))])


def score_command(run: Run) -> str:
    """Return the command that scores a text with the model of a timed run, each precision of which it can be asked."""
    told = {
        "model": run.text("model_id") or run.text("model"),
        "revision": run.text("revision"),
        "backend": run.text("backend"),
        "device": run.text("device_requested"),
        "dtype": run.text("dtype_requested"),
    }
    defaults = {"backend": Variant.backend, "device": Variant.device, "dtype": "", "revision": ""}
    given = [f"{name}={value}" for name, value in told.items() if value and value != defaults.get(name)]
    words = ["mlflow", "run", ".", "-e", "perplexity", "--env-manager", "local"]
    return shlex.join([*words, *(word for each in given for word in ("-P", each))])


def each_once(commands: Iterable[str]) -> list[str]:
    """Return commands of `measure_more`; of those that differ only in how often or long they measure, one that is enough for all."""
    found: dict[str, dict[str, int]] = {}
    for command in commands:
        most = found.setdefault(_LEAST.sub("", command), {})
        for name, value in _LEAST.findall(command):
            most[name] = max(int(value), most.get(name, 0))
    return [" ".join([what, *(f"-P {name}={value}" for name, value in most.items())]) for what, most in found.items()]


def parameters_asked(run: Run) -> dict[str, str]:
    """Return the parameters by which a run's experiment is asked for again, where they are not as by default.

    Of a run that does not tell them (of an older version) these are what every experiment takes, as far as params tell.
    """
    if run.asked:
        told: dict[str, str] = json.loads(run.asked)
        # What is measured already is to be measured again.
        return {name: value for name, value in told.items() if name != "resume"}
    defaults = {
        "model": ("model", DEFAULT_MODEL),
        "revision": ("revision", ""),
        "device": ("device_requested", Variant.device),
        "max_new_tokens": ("max_new_tokens", str(GenerateTask.max_new_tokens)),
    }
    found = {name: run.text(param) for name, (param, _) in defaults.items()}
    return {name: value for name, value in found.items() if value not in ("", defaults[name][1])}


def with_samples(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Return runs with all that verdicts on them depend on, read back from the store.

    That is the raw samples of each finished one, how far equal settings differed that were measured more than
    once (`llmtrack.decide.noise_floor`), and how many comparisons its study makes (`llmtrack.decide.family`).
    """
    # Of samples that cannot be read, what is tracked of the spread tells.
    found = samples_by_run([run.run_id for run in runs.finished], tracking_uri, lenient=True)
    held = Runs(dataclasses.replace(run, samples=found.get(run.run_id, {})) for run in runs)
    return in_context(held, measured_there(held, tracking_uri))


def _difference(
    baseline: Run,
    candidate: Run,
    metric: str,
    across_work: bool,
    across_environments: bool,
) -> Difference:
    """Return a difference that is not judged yet, or one whose verdict is why there is none."""
    then, now = baseline.number(metric), candidate.number(metric)

    def none(verdict: Verdict, words: str) -> Difference:
        before, after = (math.nan if value is None else value for value in (then, now))
        return Difference(metric, before, after, None, verdict=verdict, words=words)

    for run in (candidate, baseline):
        if not run.is_finished:
            return none("failed" if run.status == FAILED else "missing", run.state)
    if now is None and candidate.is_same_as:
        return none("missing", f"not measured again: {candidate.text('reason')}")
    if then is None or now is None:
        sides = [side for side, value in (("baseline", then), ("candidate", now)) if value is None]
        return none("missing", f"no {metric} of the {' and '.join(sides)}")
    reason = why_not(baseline, candidate, metric, across_environments, across_work)
    if reason:
        return none("not comparable", f"{metric} is not comparable: {reason}")
    before, after = (run.samples.get(metric, ()) for run in (baseline, candidate))
    spreads = [run.spread(metric) for run in (baseline, candidate)]
    both = (spreads[0], spreads[1]) if spreads[0] and spreads[1] else None
    found = difference(metric, then, now, before, after, both)
    return dataclasses.replace(found, doubts=(*own_warnings(baseline), *own_warnings(candidate)))


def _above_floor(found: Difference, floor: float) -> Difference:
    """Return a difference, which is none where equal settings differed by as much."""
    if not found.told or found.ratio is None or not is_within(found.ratio.value, floor):
        return found
    return dataclasses.replace(found, verdict="same", words=f"{floor_in_words(floor)}: {in_figures(found)}")
