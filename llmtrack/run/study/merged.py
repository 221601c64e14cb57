"""One measurement of several that were made one after the other of the same scenario, such as the rounds of a race."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import median

from llmtrack.measure.statistics import disturbed, findings, summarize, summarize_rate
from llmtrack.metrics import METRIC_BY_NAME
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.task import RepeatPolicy

_DURATION = "total_latency_s"
_BUSY = "the machine was busy:"
_NOT_DETERMINISTIC = "the repeats generated different tokens although decoding is greedy: not deterministic"

_SHARES = {
    "prefill_floor_share": "time_to_first_token_ms",
    "prefill_flops_utilization": "time_to_first_token_ms",
    "decode_floor_share": "inter_token_latency_ms",
    "decode_flops_utilization": "inter_token_latency_ms",
    "memory_bandwidth_utilization": "inter_token_latency_ms",
}
"""Shares of what the device can do, each with the time that it is inversely proportional to."""

_OF_A_PASS = ("score_tokens_per_sec", "score_floor_share", "score_flops_utilization")
"""Work of one pass over a text by its time: of several passes the harmonic mean."""

_OF_ALL_CALLS = ("joules_per_token", "power_w", "idle_energy_share")
"""Figures of all calls of a measurement together: of several measurements their mean, weighted by the calls."""


def merged(measurements: Sequence[Measurement], policy: RepeatPolicy) -> Measurement:
    """Return measurements of one scenario as one: their samples together, the rest as the last one says it.

    Args:
        measurements: in the order they were made, one at least.
        policy: what all of them together are to be judged by.
    """
    last = measurements[-1]
    samples: dict[str, tuple[float, ...]] = {}
    for each in measurements:
        for name, values in each.samples.items():
            samples[name] = (*samples.get(name, ()), *values)
    summaries = {
        name: (summarize_rate if METRIC_BY_NAME[name].rate else summarize)(values) for name, values in samples.items()
    }
    metrics = {key: value for each in measurements for key, value in each.metrics.items()}
    metrics |= {name: summary.median for name, summary in summaries.items()}
    metrics |= _derived(measurements, metrics)
    # What was said of a round's few repeats is said of all of them instead.
    of_rounds = [
        line
        for each in measurements
        for line in each.warnings
        if line not in findings(each.samples.get(_DURATION, (1.0,)), each.scenario.repeat)
    ]
    if len({each.facts.get("output_digest") for each in measurements}) > 1:
        of_rounds.append(_NOT_DETERMINISTIC)
    durations = samples.get(_DURATION, ())
    return replace(
        last,
        scenario=replace(last.scenario, repeat=policy),
        metrics=metrics,
        samples=samples,
        summaries=summaries,
        facts={key: value for each in measurements for key, value in each.facts.items()},
        warnings=tuple(dict.fromkeys((*_busiest(of_rounds), *(findings(durations, policy) if durations else ())))),
        disturbed=were_disturbed(measurements),
        series=_series(measurements),
        texts={name: text for each in measurements for name, text in each.texts.items()},
        rounds=tuple(number for each in measurements for number in each.rounds),
        started_at=measurements[0].started_at,
    )


def _derived(measurements: Sequence[Measurement], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that follow from other figures of all measurements than the last one's."""
    found = {}
    for name, time in _SHARES.items():
        known = [each.metrics for each in measurements if name in each.metrics and time in each.metrics]
        if known and time in metrics:
            found[name] = known[-1][name] * known[-1][time] / metrics[time]
    for name in _OF_A_PASS:
        if values := [each.metrics[name] for each in measurements if name in each.metrics]:
            found[name] = len(values) / math.fsum(1 / value for value in values)
    for name in _OF_ALL_CALLS:
        known_in = [each for each in measurements if name in each.metrics]
        calls = [len(each.samples.get(_DURATION, ())) for each in known_in]
        if any(calls):
            weighed = zip(known_in, calls, strict=True)
            found[name] = math.fsum(each.metrics[name] * n for each, n in weighed) / sum(calls)
    if peaks := [each.metrics["peak_memory_mib"] for each in measurements if "peak_memory_mib" in each.metrics]:
        found["peak_memory_mib"] = max(peaks)
    return found


def _series(measurements: Sequence[Measurement]) -> dict[str, tuple[float, ...]]:
    """Return the series of the last measurement that has each; of the gaps between tokens the median of all."""
    series = {name: values for each in measurements for name, values in each.series.items()}
    gaps = [each.series["token_latency_ms"] for each in measurements if "token_latency_ms" in each.series]
    if gaps:
        steps = zip_longest(*gaps)
        series["token_latency_ms"] = tuple(median(gap for gap in step if gap is not None) for step in steps)
    return series


def were_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Return whether all repeats vary or drift, or one of the measurements was disturbed by more: other programs, or the device."""
    of_each = [each.samples.get(_DURATION, ()) for each in measurements]
    return disturbed([seconds for each in of_each for seconds in each]) or any(
        each.disturbed and not disturbed(own) for each, own in zip(measurements, of_each, strict=True)
    )


def _busiest(lines: Iterable[str]) -> list[str]:
    """Return warnings, of those that the machine was busy only the one that tells the most."""
    lines = list(lines)
    busy = [line for line in lines if line.startswith(_BUSY)]
    most = max(busy, key=lambda line: max(map(int, re.findall(r"(\d+)%", line)), default=0), default=None)
    return [line for line in lines if line == most or line not in busy]
