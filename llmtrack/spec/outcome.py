"""Outcomes of a scenario: a measurement, or a failure with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from llmtrack.spec.scenario import Scenario
from llmtrack.spec.scores import Compared, Item, Part
from llmtrack.spec.serialization import Scalar, serializable, tagged


@dataclass(frozen=True)
class Summary:
    """Statistics over the repeats of one metric, in the metric's unit.

    Attributes:
        ci_low: lower end of the bootstrap 95 % interval of the median; `ci_high` is its upper end.
        mean: arithmetic mean (of a rate: the harmonic mean, the rate at the mean time).
        sd: standard deviation with ddof=1; None for one sample.
        p90: given for n >= 10.
        p99: given for n >= 100.
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
    """Values recorded at one step.

    Attributes:
        at: seconds since the epoch.
    """

    step: int
    at: float
    values: Mapping[str, float]


MOST_GENERATIONS = 100
"""Maximum generations that a worker reports of a run; the setting `traces` says how many are tracked."""


@serializable()
@dataclass(frozen=True)
class Generation:
    """A prompt and its output in one timed call.

    Attributes:
        prompt: as the model read it.
        prompt_tokens: without pads.
        started_at: of its call, in seconds since the epoch.
        first_token_s: seconds from the start to the first token; None if the engine does not report its steps.
        rows: prompts that shared the call.
        repeat: number of the timed repeat, from 1.
    """

    prompt: str
    text: str
    prompt_tokens: int
    new_tokens: int
    started_at: float
    seconds: float
    first_token_s: float | None
    rows: int
    repeat: int


# Warning of a disturbed run that a newer one of its study replaces.
REPLACED = "disturbed: measured once more"
# End of the warning of a run that was interrupted before all of its rounds.
CUT_SHORT = "rounds: it was interrupted"


@dataclass(frozen=True)
class Measurement:
    """The result of measuring one scenario.

    Attributes:
        workload_id: digest of the prompts and lengths, or of the corpus and convention.
        facts: what was actually used, tracked as params: model id, device, dtype label, token counts ...
        metrics: headline values by the names in `metrics/`.
        samples: raw, in measurement order.
        disturbed: whether the machine was busy, or the repeats vary or drift, so that other runs should not be compared
            with it.
        tags: provenance: weights digest, revision, versions, hardware.
        series: metrics with a value per step (the gap before each token, loss per batch).
        started_at: seconds since the epoch.
        ended_at: likewise.
        run_key: identity of a run that was written to while it went on; empty if the run is written at once.
        steps: values by step, for series with different steps.
        texts: artifact path to text.
        files: artifact path to local file.
        model_folder: local folder of the model to log as an MLflow model; empty for none.
        part: partial result of a shard, to be merged with the others; never tracked.
        rounds: round of each repeat, from 1, if the scenario was interleaved with others.
        items: results of the first documents of a scored text.
        generations: the first distinct outputs of the timed calls.
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
    items: tuple[Item, ...] = ()
    generations: tuple[Generation, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a scenario could not be measured.

    Attributes:
        kind: `out_of_memory`, `unsupported`, `too_long`, `non_finite`, `killed` (by the system), `timeout` (no sign of
            life), `interrupted` (by the user; can be resumed), `load`, `extension` (the backend's package is broken) or
            `error`.
        reason: one line that a user can act on.
        details: traceback or log, stored as an artifact.
        facts: as far as known; this and the other fields as in `Measurement`.
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
