"""Sentences that interpret tracked numbers (the building blocks of readings), and how one scenario ended."""

from __future__ import annotations

from collections.abc import Sequence

from llmtrack import metrics as schema
from llmtrack.decide.differences import Difference, difference_text
from llmtrack.decide.verdicts import difference_between, disturbance, group_warnings, is_disturbed, measure_command
from llmtrack.decide.verdicts import doubt as doubt
from llmtrack.host.formatting import plural, significant
from llmtrack.metrics import format_metric
from llmtrack.report.escape import in_markdown
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

MEMORY_BOUND = 0.6
FAR_FROM_BOUND = 0.3
# Maximum kinds of warnings in a reading.
_MOST_WARNINGS = 4
# Maximum ratio, including its interval, up to which insignificant differences count as practically equal.
ALIKE = 1.5
_OUTCOME_METRICS = {
    "total_latency_s": "{} s",
    "tokens_per_sec": "{} tokens/s",
    "avg_latency_per_token_ms": "{} ms/token",
    "time_to_first_token_ms": "TTFT {} ms",
    "loss": "loss {}",
    "perplexity_before": "perplexity {} before",
    "perplexity": "perplexity {}",
}
"""Metrics of the line about a measured scenario, if present."""


def change(before: Run, after: Run, key: str, across_work: bool = False) -> str:
    """Describe a run's metric relative to another's: `2.1x (1.9 to 2.3) the time`, `+0.52 % in perplexity`."""
    return times(difference_between(before, after, key, across_work=across_work), amount_of(key))


def amount_of(key: str) -> str:
    """Return the noun for a ratio in a metric: `time`, `tokens/s`, `peak MiB`."""
    entry = schema.metric(key)
    if entry.unit in ("s", "ms"):
        return "time"
    return entry.shown.title if entry.shown else key


def times(difference: Difference, amount: str) -> str:
    """Describe a ratio: `2.10x (1.98 to 2.20) the tokens/s`, no significant difference, or inconclusive.

    Args:
        amount: result of `amount_of`.
    """
    figures = difference_text(difference)
    if not figures:
        return f"{amount} that cannot be compared: {difference.why}"
    # A quality metric changes by a share, any other is a multiple.
    words = f"{figures} {'in' if schema.metric(difference.metric).of_text else 'the'} {amount}"
    if difference.verdict == "same" and not _is_small(difference):
        return f"{words}, which is inconclusive{in_doubt(difference)}"
    if difference.verdict == "same":
        return f"{words}, no significant difference{in_doubt(difference)}"
    if not difference.conclusive:
        return f"{words}, which is inconclusive: {difference.why}"
    return f"{words}{in_doubt(difference)}"


def _is_small(difference: Difference) -> bool:
    """Return whether an insignificant difference is certainly small."""
    return difference.ratio is None or (difference.ratio.low >= 1 / ALIKE and difference.ratio.high <= ALIKE)


def all_behind(best: Run, others: Sequence[Run], key: str) -> str:
    """Name the runs without a significant difference from the best, and the inconclusive ones; empty if there are none."""
    compared = [(run, difference_between(best, run, key)) for run in others]
    same = [run.name for run, difference in compared if difference.verdict == "same"]
    unknown = [
        (run.name, difference.why)
        for run, difference in compared
        if not difference.conclusive and difference.verdict != "same"
    ]
    parts = [f"no significant difference from {', '.join(same)}"] if same else []
    if unknown:
        command = measure_command(best, max(difference.repeats_needed for _, difference in compared))
        names = ", ".join(name for name, _ in unknown)
        parts.append(f"inconclusive against {names} ({unknown[0][1]}): to settle it run: {command}")
    return "".join(f"; {part}" for part in parts)


def cannot_tell(base: Run, others: Sequence[Run], key: str) -> list[str]:
    """List inconclusive comparisons with a run, and the command to measure more; empty if there are none."""
    compared = [(run, difference_between(base, run, key)) for run in others if run.run_id != base.run_id]
    unknown = [(run, difference) for run, difference in compared if difference.verdict == "unknown"]
    if not unknown:
        return []
    names = ", ".join(run.name for run, _ in unknown)
    command = measure_command(base, max(difference.repeats_needed for _, difference in unknown))
    return [f"{names} against {base.name} in {key}: inconclusive ({unknown[0][1].why}); to settle it run: {command}"]


def in_doubt(difference: Difference) -> str:
    """Describe the doubt if a compared run was disturbed or has other warnings: `, in doubt: NAME varied by 72 %`."""
    warnings: dict[str, list[str]] = {}
    for line in difference.doubts:
        name, _, warning = line.partition(": ")
        warnings.setdefault(name, []).append(warning)
    disturbances = {name: disturbance(lines) for name, lines in warnings.items()}
    if any(disturbances.values()):
        return f", in doubt: {', '.join(f'{name} {words}' for name, words in disturbances.items() if words)}"
    return f", in doubt since {' and '.join(disturbances)} carried warnings" if disturbances else ""


def undecided(question: str, runs: Runs) -> list[str]:
    """Report a question as inconclusive if all runs that could answer it were disturbed; else empty.

    Args:
        question: such as `Which precision is fastest`.
        runs: at least two.
    """
    if len(runs) < 2 or not all(map(is_disturbed, runs)):
        return []
    disturbances = "; ".join(f"{run.name}: {disturbance(run.warnings)}" for run in runs)
    which = "both" if len(runs) == 2 else f"all {len(runs)}"
    return [
        f"{question} is inconclusive: {which} were disturbed ({disturbances}); to settle it run, on a quiet "
        f"machine: {measure_command(runs[0])}"
    ]


def speed(run: Run) -> str:
    """Describe a run's speed and its conditions."""
    repeats = run.number(schema.spread_key("total_latency_s", "n"))
    count = "" if repeats is None else f", median of {plural(int(repeats), 'repeat')}"
    return (
        f"{run.text('model_id')} on {run.text('device')} in {run.text('dtype')}: {run.metrics['tokens_per_sec']:.2f} tokens/s, "
        f"{run.metrics['avg_latency_per_token_ms']:.1f} ms/token ({plural(run.params['prompt_tokens_total'], 'prompt token')}, "
        f"{plural(run.params['max_new_tokens'], 'new one')}{count}){doubt(run)}."
    )


def phases(run: Run) -> list[str]:
    """Describe how the call divides into prefill and decoding."""
    if not run.has("time_to_first_token_ms") or not run.has("decode_tokens_per_sec"):
        return []
    share = run.metrics["time_to_first_token_ms"] / 1000 / run.metrics["total_latency_s"]
    return [
        f"Prefill: {run.metrics['time_to_first_token_ms']:.0f} ms to the first token ({share:.0%} of the call, "
        f"{run.metrics['prefill_tokens_per_sec']:.0f} prompt tokens/s); decoding: {run.metrics['decode_tokens_per_sec']:.2f} tokens/s{doubt(run)}."
    ]


def bandwidth(run: Run) -> list[str]:
    """Describe how close decoding is to the memory bandwidth, and what would help."""
    if not run.has("memory_bandwidth_utilization"):
        return []
    used = run.metrics["memory_bandwidth_utilization"]
    if used >= MEMORY_BOUND:
        advice = "memory is the limit, so smaller weights (lower precision, quantization) make it faster"
    elif used <= FAR_FROM_BOUND:
        advice = "far from the limit of memory, so overhead or arithmetic is what takes the time: try another backend"
    else:
        advice = "both memory and arithmetic count: smaller weights and another backend can each help"
    measured = f"{run.metrics['copy_bandwidth_gb_per_s']:.1f} GB/s"
    return [f"Decoding moves {used:.0%} of the measured {measured}{doubt(run)}: {advice}."]


def roofline(run: Run) -> list[str]:
    """Describe how close prefill and decoding come to the roofline bound."""
    stages = (("prefill", "Prefill", "ms"), ("decode", "Decoding", "ms/token"), ("score", "Scoring", "ms"))
    lines = []
    for stage, title, unit in stages:
        if not run.has(f"{stage}_floor_share") or not run.has(f"{stage}_bound"):
            continue
        share, bound = run.metrics[f"{stage}_floor_share"], run.params[f"{stage}_bound"]
        floor = f"its floor of {significant(run.metrics[f'{stage}_floor_ms'], 3)} {unit}, which {bound} sets"
        words = f"{title} takes {1 / share:.{0 if share < 0.01 else 1}f} times {floor}"
        if share < FAR_FROM_BOUND:
            words += ": the rest is overhead (launches, small operators, other programs)"
        lines.append(f"{words}{doubt(run)}.")
    return lines


def memory(run: Run) -> list[str]:
    """Describe a run's memory."""
    if not run.has("peak_memory_mib"):
        return []
    return [
        f"Peak memory {run.metrics['peak_memory_mib']:,.0f} MiB, of which {run.metrics['model_size_mib']:,.0f} MiB are weights."
    ]


def doubts(runs: Runs) -> list[str]:
    """List unfinished runs and warnings, one line per kind; empty if there are none."""
    lines = runs.unfinished()
    warned = [(run.name, line) for run in runs for line in run.warnings]
    kinds = group_warnings(warned, len(runs))
    lines += [f"Warning: {line}" for line in kinds[:_MOST_WARNINGS]]
    if len(kinds) < len(set(warned)) or len(kinds) > _MOST_WARNINGS:
        studies = list(dict.fromkeys(filter(None, (run.study_id for run in runs))))
        option = f" --study {studies[0]}" if len(studies) == 1 else ""
        hidden = plural(len(kinds) - _MOST_WARNINGS, "more kind") if len(kinds) > _MOST_WARNINGS else ""
        lines.append(f"Warnings run by run{f', with {hidden}' if hidden else ''}: llmtrack compare{option} --warnings")
    return lines


def outcome_line(outcome: Measurement | Failure) -> str:
    """Describe how a scenario ended, in a line."""
    return f"  {outcome.scenario.name}: {_described(outcome)}"


def outcome_note(outcome: Measurement | Failure) -> str:
    """Describe a scenario's run, as Markdown."""
    warnings = () if isinstance(outcome, Failure) else outcome.warnings
    return "\n".join(
        [f"**{in_markdown(_described(outcome))}**\n", *(f"- Warning: {in_markdown(warning)}" for warning in warnings)]
    )


def _described(outcome: Measurement | Failure) -> str:
    if isinstance(outcome, Failure):
        word = "KILLED" if outcome.kind == "interrupted" else "FAILED"
        return f"{word} ({outcome.kind}): {outcome.reason}"
    figures = (
        words.format(format_metric(key, outcome.metrics[key]))
        for key, words in _OUTCOME_METRICS.items()
        if key in outcome.metrics
    )
    repeats = outcome.summaries.get("total_latency_s")
    return ", ".join(figures) + (f" (median of {repeats.n})" if repeats else "")
