"""Scenarios: one fully specified cell to measure.

Plain frozen data shared by measuring and tracking, like `task.py` and `outcome.py`: it prints, pickles and round-trips
through JSON (`serialization.py`), and imports neither torch nor mlflow.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmtrack.spec.serialization import Scalar as Scalar
from llmtrack.spec.serialization import digest, to_json
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, Task, not_asked

DEFAULT_MODEL = "packaged:smollm2,synthetic:smollm2-135m"


@dataclass(frozen=True)
class Variant:
    """The part of a scenario that determines which model is loaded.

    Attributes:
        model: a model or a comma-separated list of candidates, tried in order; see `llmtrack.models`.
        revision: git revision of a hub model, or None for its default branch.
        backend: engine name, an entry point of the group `llmtrack.engines`.
        device: `auto`, or a name of `llmtrack.devices.KINDS`, optionally with a number.
        dtype: requested dtype: `float32`, `float16` or `bfloat16`; the label of the dtype used is tracked.
        options: further options of the backend or recipe as sorted (name, value) pairs, such as `(("block_size", 32),
            ("threads", 2))`; the values that the engine reports are tracked, not these.
    """

    model: str = DEFAULT_MODEL
    revision: str | None = None
    backend: str = "torch"
    device: str = "auto"
    dtype: str = "float32"
    quantization: str = "none"
    options: tuple[tuple[str, Scalar], ...] = ()

    def option(self, name: str, default: Scalar) -> Scalar:
        """Return an option's value, or the default if it is not set."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class QualityCheck:
    """What to score beside a timed task on the same engine: speed is never reported without its cost in quality.

    Attributes:
        reference: variant to compare next-token distributions with (KL divergence, top-1 agreement), or None.
        reference_tokens: maximum number of corpus tokens to compare, from its beginning.
    """

    perplexity: PerplexityTask = PerplexityTask()
    reference: Variant | None = None
    reference_tokens: int = 1024


@dataclass(frozen=True)
class Scenario:
    """One fully specified cell to measure.

    Attributes:
        name: short and unique within its study; also the run name.
        baseline: whether the other scenarios of the study are compared with this one.
        quality: what to score beside a timed task, or None; the scores belong to the same measurement.
    """

    name: str
    variant: Variant
    task: Task
    repeat: RepeatPolicy = RepeatPolicy()
    baseline: bool = False
    quality: QualityCheck | None = None
    keep_model: bool = False

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The models it loads: its own, and its quality reference."""
        reference = self.quality.reference if self.quality else None
        return (self.variant,) if reference in (None, self.variant) else (self.variant, reference)

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the corpora it reads."""
        named = [str(self.variant.option("calibration", "none"))]
        named += [] if isinstance(self.task, GenerateTask) else [self.task.corpus]
        named += [self.quality.perplexity.corpus] if self.quality else []
        return tuple(name for name in dict.fromkeys(named) if name != "none")

    @property
    def scenario_id(self) -> str:
        """Digest of everything but the name."""
        variant = to_json(self.variant)
        # Settings at their default are left out, so that ids do not change when a setting is added.
        if not self.variant.options:
            del variant["options"]
        quality = [] if self.quality is None else [to_json(self.quality)]
        for name in not_asked(self.quality.perplexity) if self.quality else ():
            del quality[0]["perplexity"][name]
        task = to_json(self.task, Task)
        for name in not_asked(self.task):
            del task[name]
        return digest([variant, task, to_json(self.repeat), *quality])
