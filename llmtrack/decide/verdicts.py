"""The single source of verdicts: every comparison of tracked runs in words uses this module.

For two runs and a metric: better, worse, no significant difference or inconclusive, with the interval of the ratio and
the warnings of either run. Minimum repeats, correction for multiple comparisons and comparable conditions are part of
it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from llmtrack import metrics as schema
from llmtrack.decide.differences import ALPHA, Difference, Verdict, difference, judge
from llmtrack.decide.noise_floor import comparisons, floor_of, in_context, measured_there
from llmtrack.host.formatting import list_some
from llmtrack.spec.scenario import DEFAULT_MODEL, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.tracked.run import ENV, FAILED, MODEL_DIGESTS, REFERENCE_DIGESTS, Run
from llmtrack.tracked.runs import Runs, keys
from llmtrack.tracking.environment import NOT_SPEED
from llmtrack.tracking.read.artifacts import samples_by_run

# Prefixes of the warnings about disturbances; a test compares them with those of the measuring side.
DISTURBED = ("the machine was busy:", "noisy:", "drift:")
_DISTURBANCES = dict(zip(DISTURBED, ("others took {} % of the CPU", "varied by {} %", "drifted by {} %"), strict=True))

# Safety factor on the time cap, so that the requested repeats also fit for slower arms.
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
    """Return the differences of candidates from a baseline in a metric, in order.

    Args:
        baseline: a run; its raw samples count if `with_samples` has added them, else its tracked spread.
        across_work: whether different work is the question (a longer prompt).
        alpha: accepted probability of a false alarm over all comparisons of a study.
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
    """Return the difference of each pair's second run from its first in a metric; see `tell`.

    A verdict depends on the two runs and their studies, not on the other pairs.

    Args:
        across_environments: also compare speed and memory of different machines or versions.
    """
    return [_difference(*pair, metric, across_work, across_environments, alpha) for pair in pairs]


def own_warnings(run: Run) -> tuple[str, ...]:
    """Return a run's warnings, each with the run's name."""
    return tuple(f"{run.name}: {line}" for line in run.warnings)


def is_disturbed(run: Run) -> bool:
    """Return whether a run's warnings report a disturbance: a busy machine, or repeats that vary or drift."""
    return any(line.startswith(DISTURBED) for line in run.warnings)


def disturbance(warnings: Iterable[str]) -> str:
    """Summarize a disturbance from a run's warnings: `varied by 72 %`; empty if there is none."""
    for line in warnings:
        for start, words in _DISTURBANCES.items():
            if line.startswith(start) and (shares := re.findall(r"(\d+)%", line)):
                return words.format(max(map(int, shares)))
    return ""


def doubt(run: Run) -> str:
    """Return ` (in doubt: varied by 72 %)` for a disturbed run, to append to its name or value; else an empty text."""
    how = disturbance(run.warnings)
    return f" (in doubt: {how})" if how else ""


def measure_more(run: Run, repeats: int = 0) -> str:
    """Return the command that measures a run's experiment again.

    Args:
        repeats: minimum repeats per scenario; 0 to keep the setting.
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
    given = requested_parameters(run)
    # Experiments that only score or train have no repeats.
    if repeats and run.has("max_new_tokens"):
        wanted = max(repeats, int(run.number("min_repeats") or 0))
        given["min_repeats"] = str(wanted)
        seconds = wanted * _ROOM * (run.number("total_latency_s") or 0.0)
        if seconds > (run.number("max_seconds") or RepeatPolicy.max_seconds):
            given["max_seconds"] = str(math.ceil(seconds))
    return shlex.join([*words, *(word for name, value in given.items() for word in ("-P", f"{name}={value}"))])


def score_command(run: Run) -> str:
    """Return the command that scores a text with a timed run's model, in each precision it supports."""
    parameters = {
        "model": run.text("model_id") or run.text("model"),
        "revision": run.text("revision"),
        "backend": run.text("backend"),
        "device": run.text("device_requested"),
        "dtype": run.text("dtype_requested"),
    }
    defaults = {"backend": Variant.backend, "device": Variant.device, "dtype": "", "revision": ""}
    given = [f"{name}={value}" for name, value in parameters.items() if value and value != defaults.get(name)]
    words = ["mlflow", "run", ".", "-e", "perplexity", "--env-manager", "local"]
    return shlex.join([*words, *(word for each in given for word in ("-P", each))])


def each_once(commands: Iterable[str]) -> list[str]:
    """Deduplicate commands of `measure_more`; merge those that differ only in repeats or time, keeping the largest."""
    found: dict[str, dict[str, int]] = {}
    for command in commands:
        most = found.setdefault(_LEAST.sub("", command), {})
        for name, value in _LEAST.findall(command):
            most[name] = max(int(value), most.get(name, 0))
    return [" ".join([what, *(f"-P {name}={value}" for name, value in most.items())]) for what, most in found.items()]


def requested_parameters(run: Run) -> dict[str, str]:
    """Return the non-default parameters to measure a run's experiment again.

    Runs of older versions do not record them: use the common parameters as far as params give them.
    """
    if run.asked:
        parameters: dict[str, str] = json.loads(run.asked)
        # Resuming would skip what is already measured.
        return {name: value for name, value in parameters.items() if name != "resume"}
    defaults = {
        "model": ("model", DEFAULT_MODEL),
        "revision": ("revision", ""),
        "device": ("device_requested", Variant.device),
        "max_new_tokens": ("max_new_tokens", str(GenerateTask.max_new_tokens)),
    }
    found = {name: run.text(param) for name, (param, _) in defaults.items()}
    return {name: value for name, value in found.items() if value not in ("", defaults[name][1])}


def with_samples(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Add everything that verdicts depend on to runs, read from the store.

    That is the raw samples of each finished run, the noise floor (`llmtrack.decide.noise_floor`), and the size of its
    study's family of comparisons (`llmtrack.decide.noise_floor`).
    """
    # If samples cannot be read, the tracked spread is used.
    found = samples_by_run([run.run_id for run in runs.finished], tracking_uri, lenient=True)
    held = Runs(dataclasses.replace(run, samples=found.get(run.run_id, {})) for run in runs)
    return in_context(held, measured_there(held, tracking_uri))


def _difference(
    baseline: Run,
    candidate: Run,
    metric: str,
    across_work: bool,
    across_environments: bool,
    alpha: float,
) -> Difference:
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
    doubts = (*own_warnings(baseline), *own_warnings(candidate))
    tests, floor = comparisons(baseline, candidate), floor_of(metric, baseline, candidate)
    (judged,) = judge([difference(metric, then, now, before, after, both)], alpha, tests, floor)
    return dataclasses.replace(judged, doubts=doubts)


# The perplexity convention: values of different conventions are never compared.
CONVENTION = schema.params_with("convention")
# What was scored: metrics per text need the same text, metrics per token also the same tokens. Runs of older versions
# only have the counts.
_SCORED_TEXT = ("bytes_scored", "words_scored", "scored_text_digest")
_SCORED_TOKENS = ("tokens_scored", "scored_tokens_digest")
# Params behind a workload's digest; the total distinguishes prompts whose longest are equal.
WORK = (*schema.params_with("work"), "prompt_tokens_total", *CONVENTION)

# Facts about the model, not the machine.
_NOT_MACHINE = NOT_SPEED | {*MODEL_DIGESTS, *REFERENCE_DIGESTS, "revision"}
# The reference of a comparison metric.
_REFERENCE = ("reference", "reference_tokens", *(ENV + name for name in REFERENCE_DIGESTS))
_MOST_NAMED = 3


def why_not(
    baseline: Run,
    candidate: Run,
    metric: str,
    across_environments: bool = False,
    across_work: bool = False,
) -> str:
    """Explain why a metric of two runs is not comparable, naming the differences; return an empty text if it is.

    Args:
        across_environments: allow speed and memory of different machines or versions.
        across_work: allow speed and memory of different work, if that is the question.
    """
    entry = schema.metric(metric)
    if entry.of_text and (found := _other_text(baseline, candidate, metric)):
        return found
    if "reference" in entry.needs and (found := _differing(baseline, candidate, _REFERENCE)):
        return f"compared with different references ({found})"
    if "work" in entry.needs and not across_work and baseline.workload_id != candidate.workload_id:
        found = _differing(baseline, candidate, WORK) or "the texts of the prompts"
        return f"the workloads differ ({found})"
    if "machine" in entry.needs and not across_environments and baseline.environment_id != candidate.environment_id:
        return f"measured in different environments ({differing_facts(baseline, candidate)})"
    return ""


def relative_perplexity(baseline: Run | None, run: Run) -> tuple[float | None, str]:
    """Return a run's perplexity as a multiple of the baseline's or, without that, of the reference's, and whose it is.

    The baseline's is preferred, since only the beginning of the text may have been compared with the reference. None if
    neither is known.
    """
    if baseline and baseline.has("perplexity") and run.has("perplexity") and not why_not(baseline, run, "perplexity"):
        return run.metrics["perplexity"] / baseline.metrics["perplexity"], "baseline"
    return run.number("reference_perplexity_ratio"), "reference"


def scored_key(run: Run, metric: str) -> tuple[str, ...]:
    """Return the values that must be equal for a quality metric of two runs to be comparable.

    Besides the convention, metrics per text (bits per byte, word perplexity) depend on the text covered by the scored
    tokens, and metrics per token (loss, perplexity) also on these tokens.
    """
    return keys([run], _scored_by(run, metric))[0]


def _scored_by(run: Run, metric: str) -> tuple[str, ...]:
    """Return the names of the values that a quality metric depends on.

    Runs of older versions have no digests: one model then means one tokenizer, and counts must identify the text.
    """
    needs = schema.metric(metric).needs
    if "tokens" not in needs and "text" not in needs:
        return CONVENTION
    names = _SCORED_TOKENS + _SCORED_TEXT if "tokens" in needs else _SCORED_TEXT
    digests = [name for name in names if name.endswith("_digest")]
    return (
        *CONVENTION,
        *names,
        *(("model_id",) if not all(map(run.has, digests)) else ()),
    )


def _other_text(baseline: Run, candidate: Run, metric: str) -> str:
    if found := _differing(baseline, candidate, CONVENTION):
        return f"scored by different conventions ({found})"
    differing = [name for name in _scored_by(baseline, metric) if not baseline.agrees(candidate, name)]
    if not differing:
        return ""
    found = _differing(baseline, candidate, differing)
    if differing == ["model_id"]:
        return f"runs that do not say which text was scored, of different models ({found}): score them again"
    alternative = "compare bits_per_byte or word_perplexity"
    if not set(differing) & set(_SCORED_TEXT):
        return f"the tokenizers differ ({found}): {alternative}"
    both = bool(set(differing) & set(_SCORED_TOKENS))
    what = "the tokenizers and the scored text differ" if both else "the scored text differs"
    remedy = f"{alternative}, scored" if "tokens" in schema.metric(metric).needs else "score"
    return f"{what} ({found}): {remedy} with bos_rule=model and a max_length that cuts nothing"


def differing_facts(baseline: Run, candidate: Run) -> str:
    """Name the machine and version facts in which two runs differ."""
    known = sorted({*baseline.environment, *candidate.environment} - _NOT_MACHINE)
    facts = [ENV + name for name in known]
    return _differing(baseline, candidate, facts) or _differing(baseline, candidate, ["environment_id"])


def _differing(baseline: Run, candidate: Run, names: Iterable[str]) -> str:
    found = [
        f"{name.removeprefix(ENV)}: {_shown(baseline.get(name))} against {_shown(candidate.get(name))}"
        for name in names
        if not baseline.agrees(candidate, name)
    ]
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:g}" if isinstance(value, float) else str(value)


# A standalone number, not one within a name (prompt_16, smollm2-135m, v1.2).
_NUMBER = re.compile(r"(?<![\w.:/#-])\d[\d,]*(?:\.\d+)?(?![\w.:/-]*[A-Za-z_/])")


def warning_kind(warning: str) -> str:
    """Return a warning with its numbers masked."""
    return _NUMBER.sub("#", warning)


def grouped(warned: Iterable[tuple[str, str]], runs: int) -> list[str]:
    """Return a line per kind of warning: `all 4 runs: the machine was busy: other programs took 87 to 92% ...`.

    Args:
        warned: run names, each with one warning, in order.
        runs: total number of runs, with and without warnings.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, line in dict.fromkeys(warned):
        kinds.setdefault(warning_kind(line), []).append((name, line))
    return [
        f"{_who([name for name, _ in found], runs)}: {_ranged([line for _, line in found])}" for found in kinds.values()
    ]


def _who(names: list[str], runs: int) -> str:
    several = list(dict.fromkeys(names))
    return f"all {runs} runs" if len(several) == runs > 1 else list_some(several)


def _ranged(lines: list[str]) -> str:
    """Merge lines of one kind, replacing each number by its range."""
    first = lines[0]
    ranges = [
        sorted(set(each), key=lambda text: float(text.replace(",", "")))
        for each in zip(*map(_NUMBER.findall, lines), strict=True)
    ]
    numbers = iter(each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in ranges)
    return _NUMBER.sub(lambda found: next(numbers), first)
