"""What came of a scenario: a measurement, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from llmtrack.spec.scenario import Scenario
from llmtrack.spec.scores import Compared, Part
from llmtrack.spec.serialization import Scalar, tagged


@dataclass(frozen=True)
class Summary:
    """Statistics over the repeats of one metric, in the metric's unit.

    Attributes:
        n: number of samples.
        median: the headline value.
        ci_low: lower end of the bootstrap 95 % interval of the median.
        ci_high: upper end of it.
        mean: arithmetic mean (of a rate: the harmonic mean, the rate at the mean time).
        sd: standard deviation with ddof=1; None for one sample.
        p90: 90th percentile, given for n >= 10.
        p99: 99th percentile, given for n >= 100.
    """

    n: int
    median: float
    ci_low: float
    ci_high: float
    mean: float
    sd: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class StepValues:
    """What was measured at one step of something that goes on for many.

    Attributes:
        step: its number.
        at: seconds since the epoch.
        values: by the name of the series.
    """

    step: int
    at: float
    values: Mapping[str, float]


# What is said of a run that was disturbed and is replaced by a newer one of its study.
REPLACED = "disturbed: measured once more"
# How what is said of a run ends that was interrupted before all of its rounds were made.
CUT_SHORT = "rounds: it was interrupted"


@dataclass(frozen=True)
class Measurement:
    """What measuring one scenario returned.

    Attributes:
        scenario: what was asked.
        workload_id: digest of the prompts and lengths, or of the corpus and convention.
        facts: what was really used and is tracked as params: model id, device, dtype label, token counts ...
        metrics: headline value of each metric, by its name in `metrics/`.
        summaries: statistics of the metrics that were sampled more than once.
        samples: raw samples of each metric, in the order they were taken.
        warnings: findings in words about the quality of the measurement.
        disturbed: whether the machine was busy meanwhile, or the repeats vary or drift: others should not be compared with it.
        sample_text: text that the model generated, or None.
        tags: provenance: weights digest, revision, versions, hardware.
        series: metrics with a value per step (the gap before each token, loss per batch).
        started_at: seconds since the epoch.
        ended_at: seconds since the epoch.
        run_key: identity of a run that was written to while it went on; empty: the run is written at once.
        steps: what was measured step by step, at steps that not all series share.
        texts: artifact path to text.
        files: artifact path to the local file.
        model_folder: local folder of the model to keep as an MLflow model; empty: none is kept.
        part: of a shard: what is put together with the others; it is never tracked.
        rounds: of what was measured in turn with others, the round of each repeat, from 1.
    """

    scenario: Scenario
    workload_id: str
    facts: Mapping[str, Scalar]
    metrics: Mapping[str, float]
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sample_text: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    started_at: float = 0.0
    ended_at: float = 0.0
    run_key: str = ""
    steps: tuple[StepValues, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model_folder: str = ""
    disturbed: bool = False
    part: Part | Compared | None = None
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why one scenario could not be measured.

    Attributes:
        scenario: what was asked.
        kind: `out_of_memory`, `unsupported`, `too_long`, `non_finite`, `killed` (by the system), `timeout` (gave no sign of
            life), `interrupted` (by the user, and can be resumed), `load`, `extension` (the backend's package is broken) or
            `error`.
        reason: one line a user can act on.
        details: the traceback or the log, for an artifact.
        facts: what is known of what was used, as in `Measurement`.
        tags: provenance, as in `Measurement`.
        started_at: seconds since the epoch.
        ended_at: seconds since the epoch.
        run_key: as in `Measurement`.
        steps: as in `Measurement`.
        texts: as in `Measurement`.
    """

    scenario: Scenario
    kind: str
    reason: str
    details: str = ""
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    ended_at: float = 0.0
    run_key: str = ""
    steps: tuple[StepValues, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


Outcome = Union[Measurement, Failure]  # noqa: UP007 - as above
tagged(Outcome)
