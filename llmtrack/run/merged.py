"""One measurement of several that were made one after the other of the same scenario, such as the rounds of a race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmtrack.measure.statistics import disturbed, findings, summarize, summarize_rate
from llmtrack.metrics import METRIC_BY_NAME
from llmtrack.outcome import Measurement
from llmtrack.task import RepeatPolicy

_DURATION = "total_latency_s"


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
        name: (summarize_rate if METRIC_BY_NAME[name].rate else summarize)(values)
        for name, values in samples.items()
    }
    metrics = {key: value for each in measurements for key, value in each.metrics.items()}
    metrics |= {name: summary.median for name, summary in summaries.items()}
    if peaks := [
        each.metrics["peak_memory_mib"] for each in measurements if "peak_memory_mib" in each.metrics
    ]:
        metrics["peak_memory_mib"] = max(peaks)
    # What was said of a round's few repeats is said of all of them instead.
    of_rounds = [
        line
        for each in measurements
        for line in each.warnings
        if line not in findings(each.samples.get(_DURATION, (1.0,)), each.scenario.repeat)
    ]
    durations = samples.get(_DURATION, ())
    return replace(
        last,
        scenario=replace(last.scenario, repeat=policy),
        metrics=metrics,
        samples=samples,
        summaries=summaries,
        facts={key: value for each in measurements for key, value in each.facts.items()},
        warnings=tuple(dict.fromkeys((*of_rounds, *(findings(durations, policy) if durations else ())))),
        disturbed=disturbed(durations),
        started_at=measurements[0].started_at,
    )
