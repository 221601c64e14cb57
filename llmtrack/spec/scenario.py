"""What is asked: one fully specified cell to measure.

Plain data that both sides of the wall share, with `task.py` and `outcome.py`: frozen, it prints, pickles and round-trips
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
    """The part of a scenario that decides which loaded model is needed.

    Attributes:
        model: one model or a comma list of candidates, tried in order (see `llmtrack.models`).
        revision: git revision of a hub model, or None for its default branch.
        backend: name of the engine, an entry point of the group `llmtrack.engines`.
        device: `auto`, or what `llmtrack.devices.KINDS` names, with or without a number.
        dtype: `float32`, `float16` or `bfloat16`, as asked for; the label of what is used is tracked.
        quantization: name of the quantization recipe, or `none`.
        options: what else the backend or the recipe is told, as sorted (name, value) pairs, such as
            `(("block_size", 32), ("threads", 2))`; what the engine says it used is tracked, and not what was asked.
    """

    model: str = DEFAULT_MODEL
    revision: str | None = None
    backend: str = "torch"
    device: str = "auto"
    dtype: str = "float32"
    quantization: str = "none"
    options: tuple[tuple[str, Scalar], ...] = ()

    def option(self, name: str, default: Scalar) -> Scalar:
        """Return the value of an option, or the default where it is not given."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class QualityCheck:
    """What is scored beside a timed task, on the same loaded engine, so that no speed stands without its price.

    Attributes:
        perplexity: how a corpus is scored.
        reference: the variant whose next-token distributions those of this one are compared with (KL divergence,
            top-1 agreement), or None.
        reference_tokens: tokens of the corpus' beginning that are compared at most.
    """

    perplexity: PerplexityTask = PerplexityTask()
    reference: Variant | None = None
    reference_tokens: int = 1024


@dataclass(frozen=True)
class Scenario:
    """One fully specified cell to measure.

    Attributes:
        name: short and unique within its study; the name of its run.
        variant: which loaded model is needed.
        task: what is done with it.
        repeat: how often a timed call is repeated.
        baseline: whether the other scenarios of the study are compared with this one.
        quality: what is scored beside a timed task, or None; its figures are part of the same measurement.
        keep_model: whether the loaded model is kept in MLflow, too, as a model that can be loaded back.
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
        """The models that it loads: its own, and the reference that it is compared with."""
        reference = self.quality.reference if self.quality else None
        return (self.variant,) if reference in (None, self.variant) else (self.variant, reference)

    @property
    def texts(self) -> tuple[str, ...]:
        """The corpora that it reads, as they are named."""
        named = [str(self.variant.option("calibration", "none"))]
        named += [] if isinstance(self.task, GenerateTask) else [self.task.corpus]
        named += [self.quality.perplexity.corpus] if self.quality else []
        return tuple(each for each in dict.fromkeys(named) if each != "none")

    @property
    def scenario_id(self) -> str:
        """Digest of what was asked, the name aside."""
        variant = to_json(self.variant)
        # What is not asked for does not count: an id stays what it was before there was such a setting.
        if not self.variant.options:
            del variant["options"]
        quality = [] if self.quality is None else [to_json(self.quality)]
        for name in not_asked(self.quality.perplexity) if self.quality else ():
            del quality[0]["perplexity"][name]
        task = to_json(self.task, Task)
        for name in not_asked(self.task):
            del task[name]
        return digest([variant, task, to_json(self.repeat), *quality])
