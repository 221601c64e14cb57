"""Shared groups of parameters; a config includes those that it uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any

from llmtrack.devices import DEVICE_HELP, canonical_dtype
from llmtrack.engines.options import CompileOption, DevicesOption, ThreadOption
from llmtrack.engines.registry import with_words
from llmtrack.errors import UsageError
from llmtrack.host.entry_points import EXECUTOR_POINTS, names_of
from llmtrack.spec.options import Checked, Option, config_from, non_defaults, parameters
from llmtrack.spec.outcome import MOST_GENERATIONS
from llmtrack.spec.parameter import format_value
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, Workers
from llmtrack.tracking.write.records import DEFAULT_TRACES


@dataclass(frozen=True)
class WhichModel(Checked):
    """The model and its device."""

    model: Annotated[str, Option("Model, or comma list of candidates.", min=1)] = Variant.model
    revision: Annotated[str | None, Option("Revision of a hub model.")] = Variant.revision
    device: Annotated[str, Option(f"{DEVICE_HELP}.", min=1)] = Variant.device

    def variant(self, **changes: Any) -> Variant:
        """Return the requested variant; fields that the config lacks have their defaults, options only if they differ."""
        options = dict(changes.pop("options", ()))
        for group in (ThreadOption, CompileOption, DevicesOption):
            if isinstance(self, group):
                values = vars(config_from(group, self))
                options |= {name: value for name, value in values.items() if value != getattr(group, name)}
        variant = config_from(Variant, self, options=tuple(sorted(options.items())), **changes)
        backend, *words = variant.backend.split() or [""]
        return with_words(replace(variant, backend=backend), words) if words else variant


@dataclass(frozen=True)
class ModelOptions(WhichModel, ThreadOption):
    """The model, its device, and the number of threads for backends that support it."""


@dataclass(frozen=True)
class BackendOption(Checked):
    """The engine."""

    backend: Annotated[str, Option("Engine, optionally followed by its options: `llamacpp cache_type=f32`.", min=1)] = (
        Variant.backend
    )


@dataclass(frozen=True)
class DtypeOption(Checked):
    """In which precision."""

    dtype: Annotated[str, Option("Precision.", read=canonical_dtype)] = Variant.dtype


@dataclass(frozen=True)
class EngineOptions(ModelOptions, BackendOption, DtypeOption, CompileOption, DevicesOption):
    """Everything that determines the loaded model, except quantization."""


@dataclass(frozen=True)
class TimingOptions(RepeatPolicy):
    """Duration and number of timed calls."""

    max_new_tokens: Annotated[int, Option("New tokens per row.", min=1)] = GenerateTask.max_new_tokens

    def repeat(self) -> RepeatPolicy:
        """Return the requested repeat policy."""
        return config_from(RepeatPolicy, self)


@dataclass(frozen=True)
class ManyTimingOptions(TimingOptions):
    """Timing for experiments that compare more than 6 scenarios with one baseline by default.

    More comparisons need more repeats for significance (see `llmtrack.decide`): 5 against 5 suffice for 6 comparisons,
    6 against 6 for 23.
    """

    min_repeats: Annotated[int, Option("Minimum number of counted calls.", min=1)] = 6


@dataclass(frozen=True)
class JudgedText(Checked):
    """The text that quality is judged by."""

    corpus: Annotated[str, Option("Text that quality is judged by.", min=1)] = PerplexityTask.corpus


@dataclass(frozen=True)
class QualityOptions(JudgedText):
    """Amount of text to score, and number of workers."""

    max_length: Annotated[int, Option("Maximum tokens scored per document.", min=2)] = PerplexityTask.max_length
    reference_tokens: Annotated[int, Option("Tokens to compare distributions on.", min=1)] = (
        QualityCheck.reference_tokens
    )
    workers: Workers = PerplexityTask.workers

    def check(self, reference: Variant) -> QualityCheck:
        """Return the requested quality check against a reference."""
        task = PerplexityTask(corpus=self.corpus, max_length=self.max_length, workers=self.workers)
        return QualityCheck(task, reference, self.reference_tokens)


@dataclass(frozen=True)
class HereOptions(Checked):
    """Execution on this machine, and tracking."""

    resume: Annotated[bool, Option("Skip scenarios that are measured already, and report them all.")] = False
    executor: Annotated[
        str,
        Option("Measure in a worker process per variant, or in this one.", choices=("process", "inline")),
    ] = "process"
    time_limit: Annotated[
        float,
        Option(
            "Seconds without a sign of life after which a worker is given up; 0: an hour of loading, 5 minutes + 10 x "
            "max_seconds of anything else.",
            min=0,
        ),
    ] = 0.0
    tracking_uri: Annotated[
        str | None,
        Option("MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.", tracked=False),
    ] = None
    experiment_name: Annotated[str | None, Option("MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.")] = (
        None
    )
    traces: Annotated[
        int, Option("Generations kept in a run's MLflow trace; 0: none.", min=0, max=MOST_GENERATIONS, tracked=False)
    ] = DEFAULT_TRACES


@dataclass(frozen=True)
class ClusterOptions(Checked):
    """Nodes of a Ray cluster to use."""

    address: Annotated[
        str, Option("executor=ray: auto, local, HOST:PORT or ray://HOST:PORT.", min=1, tracked=False)
    ] = "auto"
    nodes: Annotated[
        str,
        Option("executor=ray: on nodes of one kind of hardware, or on each kind.", choices=("same", "each")),
    ] = "same"
    resources: Annotated[
        str,
        Option("executor=ray: what a measurement has alone: a whole node, or amounts such as CPU=4,GPU=1.", min=1),
    ] = "node"


@dataclass(frozen=True)
class RunOptions(ClusterOptions, HereOptions):
    """Execution on this machine or a cluster, and tracking."""

    executor: Annotated[
        str,
        Option(
            "Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).",
            choices=tuple(dict.fromkeys(("process", "inline", "ray", *names_of(EXECUTOR_POINTS)))),
        ),
    ] = HereOptions.executor

    def __post_init__(self) -> None:
        super().__post_init__()
        cluster_options = non_defaults(config_from(ClusterOptions, self), tracked_only=False)
        if cluster_options and self.executor != "ray":
            raise UsageError(
                f"{' and '.join(cluster_options)} would change nothing: use executor=ray, or leave {'it' if len(cluster_options) == 1 else 'them'} out"
            )


@dataclass(frozen=True)
class Settings(EngineOptions, TimingOptions, RunOptions):
    """All groups."""


def unknown_parameter(experiment: str, config: type, name: str, value: object = None) -> UsageError:
    """Return the error for an unknown parameter, suggesting the one probably meant."""
    known = [parameter.name for parameter in parameters(config)]
    elsewhere = name in {parameter.name for parameter in parameters(Settings)}
    near = [
        parameter
        for parameter in known
        if parameter.rstrip("s") in (name.rstrip("s"), name.rstrip("s").rpartition("_")[2])
    ]
    # A parameter of other experiments is not a misspelling: only suggest its plural or singular.
    near = near or ([] if elsewhere else get_close_matches(name, known, n=1))
    if near:
        assignment = "" if value is None else f"={format_value(tuple(value) if isinstance(value, list) else value)}"
        return UsageError(f"{experiment} has no parameter {name}: did you mean {near[0]}{assignment}?")
    if elsewhere:
        return UsageError(f"{experiment} takes no {name}, which would change nothing here: leave it out")
    return UsageError(f"{experiment} has no parameter {name}: it takes {', '.join(known)}")
