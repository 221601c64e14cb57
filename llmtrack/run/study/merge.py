"""Merge several measurements of one scenario, such as the rounds of a race."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from statistics import median
from typing import TypeVar

from llmtrack.measure.statistics import disturbed, findings, summarize, summarize_rate
from llmtrack.measure.system_metrics import MAX_POINTS
from llmtrack.metrics import METRIC_BY_NAME
from llmtrack.spec.outcome import Measurement, StepValues
from llmtrack.spec.task import RepeatPolicy

Value = TypeVar("Value")

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
"""Utilization metrics, each with the time that it is inversely proportional to."""

_OF_A_PASS = ("score_tokens_per_sec", "score_floor_share", "score_flops_utilization")
"""Rates of a pass over a text: merged by the harmonic mean."""

_OF_ALL_CALLS = ("joules_per_token", "power_w", "idle_energy_share")
"""Metrics over all calls of a measurement: merged by the mean, weighted by the number of calls."""


def merge_measurements(measurements: Sequence[Measurement], policy: RepeatPolicy) -> Measurement:
    """Merge measurements of one scenario: pool the samples; everything else comes from the last one.

    Args:
        measurements: in order, at least one.
    """
    last = measurements[-1]
    samples: dict[str, tuple[float, ...]] = {}
    for measurement in measurements:
        for name, values in measurement.samples.items():
            samples[name] = (*samples.get(name, ()), *values)
    summaries = {
        name: (summarize_rate if METRIC_BY_NAME[name].rate else summarize)(values) for name, values in samples.items()
    }
    metrics = _union(measurement.metrics for measurement in measurements)
    metrics |= {name: summary.median for name, summary in summaries.items()}
    metrics |= _derived(measurements, metrics)
    # Replace the warnings about single rounds by those about all repeats.
    warnings = [
        line
        for measurement in measurements
        for line in measurement.warnings
        if line not in findings(measurement.samples.get(_DURATION, (1.0,)), measurement.scenario.repeat)
    ]
    if len({measurement.facts.get("output_digest") for measurement in measurements}) > 1:
        warnings.append(_NOT_DETERMINISTIC)
    durations = samples.get(_DURATION, ())
    return replace(
        last,
        scenario=replace(last.scenario, repeat=policy),
        metrics=metrics,
        samples=samples,
        summaries=summaries,
        facts=_union(measurement.facts for measurement in measurements),
        warnings=tuple(dict.fromkeys((*_busiest(warnings), *(findings(durations, policy) if durations else ())))),
        disturbed=were_disturbed(measurements),
        series=_series(measurements),
        texts=_union(measurement.texts for measurement in measurements),
        rounds=tuple(number for measurement in measurements for number in measurement.rounds),
        steps=_thinned([row for measurement in measurements for row in measurement.steps]),
        started_at=measurements[0].started_at,
    )


def _union(mappings: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """Return all entries; later ones replace earlier ones."""
    return {key: value for mapping in mappings for key, value in mapping.items()}


def _thinned(rows: Sequence[StepValues]) -> tuple[StepValues, ...]:
    stride = max(1, math.ceil(len(rows) / MAX_POINTS))
    return tuple(replace(row, step=number) for number, row in enumerate(rows[::stride]))


def _derived(measurements: Sequence[Measurement], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that depend on more than the last measurement."""
    derived = {}
    metrics_of_each = [measurement.metrics for measurement in measurements]
    for name, time in _SHARES.items():
        with_both = [own for own in metrics_of_each if name in own and time in own]
        if with_both and time in metrics:
            derived[name] = with_both[-1][name] * with_both[-1][time] / metrics[time]
    for name in _OF_A_PASS:
        if values := [own[name] for own in metrics_of_each if name in own]:
            derived[name] = len(values) / math.fsum(1 / value for value in values)
    for name in _OF_ALL_CALLS:
        with_name = [measurement for measurement in measurements if name in measurement.metrics]
        weights = [len(measurement.samples.get(_DURATION, ())) for measurement in with_name]
        if any(weights):
            products = (own.metrics[name] * weight for own, weight in zip(with_name, weights, strict=True))
            derived[name] = math.fsum(products) / sum(weights)
    if peaks := [own["peak_memory_mib"] for own in metrics_of_each if "peak_memory_mib" in own]:
        derived["peak_memory_mib"] = max(peaks)
    return derived


def _series(measurements: Sequence[Measurement]) -> dict[str, tuple[float, ...]]:
    """Return each series from the last measurement that has it; for token gaps, the median of all."""
    series = _union(measurement.series for measurement in measurements)
    gaps = [measured.series["token_latency_ms"] for measured in measurements if "token_latency_ms" in measured.series]
    if gaps:
        steps = zip_longest(*gaps)
        series["token_latency_ms"] = tuple(median(gap for gap in step if gap is not None) for step in steps)
    return series


def were_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Return whether the pooled repeats vary or drift, or other programs or the device disturbed a measurement."""
    durations = [measurement.samples.get(_DURATION, ()) for measurement in measurements]
    return disturbed(list(chain.from_iterable(durations))) or any(
        measurement.disturbed and not disturbed(own) for measurement, own in zip(measurements, durations, strict=True)
    )


def _busiest(lines: Iterable[str]) -> list[str]:
    """Keep only the worst of the warnings that the machine was busy."""
    lines = list(lines)
    busy = [line for line in lines if line.startswith(_BUSY)]
    busiest = max(busy, key=lambda line: max(map(int, re.findall(r"(\d+)%", line)), default=0), default=None)
    return [line for line in lines if line == busiest or line not in busy]
