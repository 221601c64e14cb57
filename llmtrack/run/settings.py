"""Groups of parameters that experiments have in common; a config includes those that it uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any

from llmtrack.devices import DEVICE_HELP, canonical_dtype
from llmtrack.engines.options import CompileOption, DevicesOption, ThreadOption
from llmtrack.engines.registry import told
from llmtrack.errors import UsageError
from llmtrack.host.entry_points import EXECUTOR_POINTS, names_of
from llmtrack.spec.options import Checked, Option, changed, parameters, taken
from llmtrack.spec.parameter import written
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, Workers


@dataclass(frozen=True)
class WhichModel(Checked):
    """Which model, and where it runs."""

    model: Annotated[str, Option("Model, or comma list of candidates.", min=1)] = Variant.model
    revision: Annotated[str | None, Option("Revision of a hub model.")] = Variant.revision
    device: Annotated[str, Option(f"{DEVICE_HELP}.", min=1)] = Variant.device

    def variant(self, **changes: Any) -> Variant:
        """Return the variant that is asked for: what a config does not say is as by default."""
        options = tuple(sorted(dict(changes.pop("options", ())).items()))
        asked = taken(Variant, self, options=options, **changes)
        backend, *words = asked.backend.split() or [""]
        return told(replace(asked, backend=backend), words) if words else asked


@dataclass(frozen=True)
class ModelOptions(WhichModel, ThreadOption):
    """Which model, where it runs, and with how many threads, of every backend that takes them."""

    def variant(self, **changes: Any) -> Variant:
        """Return the variant that is asked for."""
        told = dict(changes.pop("options", ()))
        if self.threads:
            told["threads"] = self.threads
        return super().variant(options=tuple(told.items()), **changes)


@dataclass(frozen=True)
class BackendOption(Checked):
    """Which engine runs it."""

    backend: Annotated[
        str,
        Option(
            "Engine, and behind a space each what else it is told: `llamacpp cache_type=f32`.",
            min=1,
        ),
    ] = Variant.backend


@dataclass(frozen=True)
class DtypeOption(Checked):
    """In which precision."""

    dtype: Annotated[str, Option("Precision.", read=canonical_dtype)] = Variant.dtype


@dataclass(frozen=True)
class EngineOptions(ModelOptions, BackendOption, DtypeOption, CompileOption, DevicesOption):
    """All that decides which loaded model is needed, quantization aside."""

    def variant(self, **changes: Any) -> Variant:
        """Return the variant that is asked for."""
        asked = taken(CompileOption, self), taken(DevicesOption, self)
        told = {
            name: value for each in asked for name, value in vars(each).items() if value != getattr(type(each), name)
        }
        changes["options"] = (*changes.get("options", ()), *told.items())
        return super().variant(**changes)


@dataclass(frozen=True)
class TimingOptions(RepeatPolicy):
    """How long and how often a timed call is made."""

    max_new_tokens: Annotated[int, Option("New tokens per row.", min=1)] = GenerateTask.max_new_tokens

    def repeat(self) -> RepeatPolicy:
        """Return the repeat policy that is asked for."""
        return taken(RepeatPolicy, self)


@dataclass(frozen=True)
class ManyTimingOptions(TimingOptions):
    """The same where more than 6 scenarios are compared with one baseline by default.

    The more are compared, the more repeats it takes to tell noise from a difference (see `llmtrack.decide`): 5 against 5
    tell among 6 comparisons, 6 against 6 among 23.
    """

    min_repeats: Annotated[int, Option("Counted calls at least.", min=1)] = 6


@dataclass(frozen=True)
class JudgedText(Checked):
    """By which text quality is judged."""

    corpus: Annotated[str, Option("Text that quality is judged by.", min=1)] = PerplexityTask.corpus


@dataclass(frozen=True)
class QualityOptions(JudgedText):
    """By how much of it quality is judged, and by how many workers."""

    max_length: Annotated[int, Option("Tokens of a document that are scored at most.", min=2)] = (
        PerplexityTask.max_length
    )
    reference_tokens: Annotated[int, Option("Tokens on which distributions are compared.", min=1)] = (
        QualityCheck.reference_tokens
    )
    workers: Workers = PerplexityTask.workers


@dataclass(frozen=True)
class HereOptions(Checked):
    """How a study is run on this machine, and where it is tracked."""

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


@dataclass(frozen=True)
class ClusterOptions(Checked):
    """On which nodes of a Ray cluster."""

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
    """How a study is run, on this machine or on a cluster, and where it is tracked."""

    executor: Annotated[
        str,
        Option(
            "Measure in a worker process per variant, in this one, or on a Ray cluster (docs/ray.md).",
            choices=tuple(dict.fromkeys(("process", "inline", "ray", *names_of(EXECUTOR_POINTS)))),
        ),
    ] = HereOptions.executor

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = changed(taken(ClusterOptions, self), tracked_only=False)
        if asked and self.executor != "ray":
            raise UsageError(
                f"{' and '.join(asked)} would change nothing: use executor=ray, or leave {'it' if len(asked) == 1 else 'them'} out"
            )


@dataclass(frozen=True)
class Settings(EngineOptions, TimingOptions, RunOptions):
    """All of them."""


def unknown(experiment: str, config: type, name: str, value: object = None) -> UsageError:
    """Return the error for a parameter that an experiment does not take; it names the one that was probably meant.

    Args:
        experiment: its name.
        config: what it takes.
        name: what was given.
        value: its value; None: not known.
    """
    known = [each.name for each in parameters(config)]
    elsewhere = name in {each.name for each in parameters(Settings)}
    near = [each for each in known if each.rstrip("s") in (name.rstrip("s"), name.rstrip("s").rpartition("_")[2])]
    # What other experiments take is no misspelling: only its plural, or singular, is meant.
    near = near or ([] if elsewhere else get_close_matches(name, known, n=1))
    if near:
        given = "" if value is None else f"={written(tuple(value) if isinstance(value, list) else value)}"
        return UsageError(f"{experiment} has no parameter {name}: did you mean {near[0]}{given}?")
    if elsewhere:
        return UsageError(f"{experiment} takes no {name}, which would change nothing here: leave it out")
    return UsageError(f"{experiment} has no parameter {name}: it takes {', '.join(known)}")
