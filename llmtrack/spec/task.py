"""Tasks for a loaded model: generate, score a text, or train; and the repeat policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Union

from llmtrack.errors import UsageError
from llmtrack.spec.options import Checked, Option
from llmtrack.spec.serialization import digest, tagged

PROTOCOLS = ("documents", "rolling")
BOS_RULES = ("tokenizer", "model", "none")
STARTS = ("auto", "scratch", "weights")
SPLITS = ("auto", "document", "contiguous")
KEPT_CHECKPOINTS = ("artifact", "model", "none")
PADDING_SIDES = ("right", "left")

NAMED_CORPORA = BUILTIN_TEXT, PYDOC = ("builtin", "pydoc")
MOST_WORKERS = 1_024

ScoredText = Annotated[str, Option(f"{', '.join(NAMED_CORPORA)}, or a .txt or .jsonl file.")]

Workers = Annotated[
    int | None,
    Option(
        "Workers that score the text together, each with a copy of the model (docs/ray.md); auto: as many as a cluster has room for.",
        min=1,
        max=MOST_WORKERS,
        nothing="auto",
    ),
]


@dataclass(frozen=True)
class RepeatPolicy(Checked):
    """When to stop repeating a timed call; see `llmtrack.measure.timing` for the rule.

    Attributes:
        max_seconds: the first counted repeat is always made; a further one only starts if it would finish in time when
            as slow as the slowest known one.
        target_ci: stop early only if the half width of the median's 95 % interval is at most this share of the median.
    """

    warmup: Annotated[int, Option("Calls made first and not counted.", min=0)] = 1
    min_repeats: Annotated[int, Option("Minimum number of counted calls.", min=1)] = 5
    min_seconds: Annotated[float, Option("Minimum seconds of counted calls.", min=0)] = 1.0
    max_seconds: Annotated[float, Option("Maximum seconds of counted calls per scenario.", above=0)] = 60.0
    max_repeats: int = 200
    target_ci: float = 0.05


@dataclass(frozen=True)
class GenerateTask:
    """Generate greedily from one or more prompts, and time it.

    Attributes:
        prompt_tokens: repeat and cut each prompt to exactly this many tokens.
        padding_side: side of the pads in a batch of unequal lengths: `left` or `right`.
        ignore_eos: suppress the end-of-sequence token, so that every row gets `max_new_tokens` tokens.
        batch_size: rows per call, in the order of the prompts; None for one call.
        pad_to_multiple: pad a batch to a multiple of this many tokens; 1 pads to its longest row.
        compare_unpadded: also generate from each prompt alone, untimed, and report which rows differ.
        prompt_share: repeat each prompt to this share of the free context (context - max_new_tokens): 1 fills it, more
            than 1 exceeds it.
        max_prompt_tokens: maximum prompt length, even if the context has room for more.
        empty_prompt: handling of a text without tokens: `error`, or `bos` for one start token (the EOS, which separates
            documents, if the tokenizer has no BOS).
        overlong_prompt: handling of a prompt longer than the context or `max_prompt_tokens`: `error`, or `truncate` to
            keep its last tokens.
    """

    prompts: tuple[str, ...]
    prompt_tokens: int | None = None
    max_new_tokens: int = 32
    use_cache: bool = True
    padding_side: str = "left"
    ignore_eos: bool = True
    batch_size: int | None = None
    pad_to_multiple: int = 1
    compare_unpadded: bool = False
    prompt_share: float | None = None
    max_prompt_tokens: int | None = None
    empty_prompt: str = "error"
    overlong_prompt: str = "error"


@dataclass(frozen=True)
class PerplexityTask(Checked):
    """Score a corpus with one perplexity protocol.

    Attributes:
        protocol: `documents` (each text on its own, padded batches) or `rolling` (all texts as one stream, overlapping
            windows); results of the two are never compared.
        max_length: for `documents`, the maximum tokens scored per document; the rest is cut, counted and reported. For
            `rolling`, the maximum tokens of context.
        stride: for `rolling`, new tokens of each window after the first; 0 for `max_length`, the cheapest.
        bos_rule: see `llmtrack.quality.encoding`.
        batch_size: like `padding_side` and `workers`, does not change the result.

    Raises:
        UsageError: a setting is invalid, or belongs to the other protocol.
    """

    corpus: ScoredText = BUILTIN_TEXT
    protocol: Annotated[str, Option("Each text on its own, or all as one stream.", choices=PROTOCOLS)] = "documents"
    max_length: Annotated[int, Option("Maximum tokens of a document, or of a window.", min=2)] = 512
    stride: Annotated[int, Option("rolling: new tokens of each window; 0: max-length.", min=0)] = 0
    bos_rule: Annotated[
        str,
        Option(
            "Start of each text: what the tokenizer adds, the model's BOS or EOS, or nothing.",
            choices=BOS_RULES,
        ),
    ] = "tokenizer"
    max_tokens: Annotated[int, Option("rolling: maximum tokens of the stream; 0: all.", min=0)] = 0
    batch_size: Annotated[
        int | None,
        Option("Documents or windows per batch; auto: as many as memory has room for.", min=1, nothing="auto"),
    ] = 4
    padding_side: Annotated[str, Option("Side of the pads of a batch.", choices=PADDING_SIDES)] = "right"
    verbose: Annotated[bool, Option("Print a line per batch.", tracked=False)] = False
    workers: Workers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "rolling":
            for name in ("stride", "max_tokens"):
                if getattr(self, name):
                    raise UsageError(f"{name} belongs to protocol=rolling: leave it 0 with {self.protocol}")
        _check_stride(self, "stride", "max_length")
        if self.max_tokens == 1:
            raise UsageError(f"max_tokens {self.max_tokens} is not possible: use 2 or more, or 0 for all")

    @property
    def window_stride(self) -> int:
        """The effective stride; 0 without windows."""
        return (self.stride or self.max_length) if self.protocol == "rolling" else 0


@dataclass(frozen=True)
class ShardTask(PerplexityTask):
    """Score one shard of a corpus, as one of several workers; `llmtrack.quality.shards` merges the results.

    Attributes:
        number: from 0 to `of` - 1.
        occasion: id shared by all shards of one scoring, so that a worker prepares the text only once.
    """

    number: int = 0
    of: int = 1
    occasion: str = ""


@dataclass(frozen=True)
class TrainTask(Checked):
    """Train a model on a corpus with a held-out part.

    Perplexity on the held-out part, before and after, is that of `PerplexityTask` with `protocol=rolling`, `max_length`
    of `sequence_length`, stride 0 and `max_tokens` of `validation_tokens`.

    Attributes:
        start: `weights` (continue from the model's), `scratch` (only the shape of a `synthetic:` preset; fresh weights,
            and a tokenizer trained on the corpus), or `auto`: `scratch` for a `synthetic:` model.
        split: see `llmtrack.train.data`.
        log_checkpoint: keep the best checkpoint in MLflow as files (`artifact`), also as an MLflow model (`model`), or
            only in the output folder (`none`).
        output: folder of the checkpoints; training resumes from the newest there.

    Raises:
        UsageError: a setting is invalid.
    """

    corpus: ScoredText = PYDOC
    start: Annotated[
        str,
        Option(
            "Start from the model's weights, or fresh ones in the shape of a synthetic: preset; auto: fresh for such a preset.",
            choices=STARTS,
        ),
    ] = "auto"
    split: Annotated[str, Option("Hold out whole documents, or the end of the text.", choices=SPLITS)] = "auto"
    validation_share: Annotated[float, Option("Held-out share of the text.", above=0, below=1)] = 0.1
    validation_tokens: Annotated[int, Option("Maximum held-out tokens to score; 0: all.", min=0)] = 0
    sequence_length: Annotated[int, Option("Tokens of a window.", min=2)] = 256
    window_stride: Annotated[int, Option("Tokens between windows; 0: sequence-length.", min=0)] = 0
    batch_size: Annotated[int, Option("Windows per forward pass.", min=1)] = 8
    accumulate: Annotated[int, Option("Forward passes per step.", min=1)] = 1
    steps: Annotated[int, Option("Optimizer steps.", min=1)] = 300
    learning_rate: Annotated[float, Option("Peak learning rate.", above=0)] = 1e-3
    warmup_steps: Annotated[int, Option("Steps of linear warm-up.", min=0)] = 20
    weight_decay: Annotated[float, Option("AdamW weight decay, on matrices only.", min=0)] = 0.1
    clip_norm: Annotated[float, Option("Maximum gradient norm; 0: no clipping.", min=0)] = 1.0
    eval_every: Annotated[int, Option("Steps between evaluations.", min=1)] = 50
    patience: Annotated[int, Option("Evaluations without improvement before stopping early; 0: never.", min=0)] = 0
    seed: Annotated[int, Option("Seed of the data order, fresh weights and dropout.", min=0)] = 0
    sample_tokens: Annotated[int, Option("Tokens generated at each evaluation; 0: none.", min=0)] = 32
    log_checkpoint: Annotated[
        str,
        Option(
            "Keep the best checkpoint in MLflow as files, as an MLflow model beside them, or only in the output folder.",
            choices=KEPT_CHECKPOINTS,
        ),
    ] = "artifact"
    explain: Annotated[bool, Option("Print how the loss of one window is computed.", tracked=False)] = False
    output: Annotated[str, Option("Folder of the checkpoints; none: one in .llmtrack/training.", tracked=False)] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_stride(self, "window_stride", "sequence_length")
        self.scoring  # noqa: B018 - validates the scoring settings

    @property
    def scoring(self) -> PerplexityTask:
        """The scoring of the held-out part."""
        return PerplexityTask(
            self.corpus,
            protocol="rolling",
            max_length=self.sequence_length,
            bos_rule="model",
            max_tokens=self.validation_tokens,
            batch_size=self.batch_size,
        )


Task = Union[GenerateTask, PerplexityTask, ShardTask, TrainTask]  # noqa: UP007 - cattrs reads this alias at run time on Python 3.10
tagged(Task)


def _check_stride(task: Checked, stride: str, length: str) -> None:
    """Refuse a stride beyond the window, which would skip tokens."""
    value, most = getattr(task, stride), getattr(task, length)
    if value > most:
        raise UsageError(f"{stride} {value} is not possible: use 1 to {length}, which is {most}, or 0 for {length}")


def not_asked(task: Task) -> tuple[str, ...]:
    """Name the settings that do not change the result: output folder, printing, a single worker."""
    if isinstance(task, TrainTask):
        return ("output", "explain")
    # Settings at their default are left out, so that ids do not change when a setting is added.
    return ("workers",) if isinstance(task, PerplexityTask) and task.workers == 1 else ()


def workload_id(task: Task, corpus_digest: str = "") -> str:
    """Digest the work itself: prompts and lengths, or the corpus and how it is cut.

    It excludes what is scored beside a timed task (`Scenario.quality`; params record its convention), and settings of
    how the work is done (cache, padding, scoring batch size): scenarios of one workload may be compared.
    """
    if isinstance(task, GenerateTask):
        work: list[Any] = [task.prompts, task.prompt_tokens, task.max_new_tokens, task.ignore_eos]
        lengths = [task.prompt_share, task.max_prompt_tokens]
        work += lengths if any(length is not None for length in lengths) else []
    elif isinstance(task, TrainTask):
        # The training settings are what is compared; the held-out text and its scoring must be the same.
        held_out = [task.split, task.validation_share, task.validation_tokens]
        work = [corpus_digest, *held_out, task.sequence_length]
    else:
        convention = [task.protocol, task.max_length, task.window_stride, task.bos_rule, task.max_tokens]
        work = [corpus_digest, *convention]
    # A shard has the workload id of its text, the same as when one worker scores it.
    kind = PerplexityTask if isinstance(task, PerplexityTask) else type(task)
    return digest([kind.__name__, *work])
