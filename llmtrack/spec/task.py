"""What is done with a loaded model: generate, score a text, train; and how often."""

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
        warmup: calls of the same shape that are made first and not counted.
        min_repeats: counted calls at least.
        min_seconds: seconds of counted calls at least.
        max_seconds: a cap on the seconds of counted repeats: the first one is always made, and no further one
            starts that would end beyond it if it took as long as the longest known one.
        max_repeats: counted calls at most.
        target_ci: stop early only when the half width of the median's 95 % interval is at most this share
            of the median.
    """

    warmup: Annotated[int, Option("Calls made first and not counted.", min=0)] = 1
    min_repeats: Annotated[int, Option("Counted calls at least.", min=1)] = 5
    min_seconds: Annotated[float, Option("Seconds of counted calls at least.", min=0)] = 1.0
    max_seconds: Annotated[float, Option("Cap on the seconds of counted calls per scenario.", above=0)] = 60.0
    max_repeats: int = 200
    target_ci: float = 0.05


@dataclass(frozen=True)
class GenerateTask:
    """Generate from one or more prompts, greedily, and time it.

    Attributes:
        prompts: one text per row.
        prompt_tokens: if given, each prompt is repeated and cut to exactly this many tokens.
        max_new_tokens: new tokens per row.
        use_cache: whether the KV cache is used.
        padding_side: side of the pads of a batch with unequal lengths: `left` or `right`.
        ignore_eos: suppress the end-of-sequence token, so that every row gets `max_new_tokens` tokens.
        batch_size: rows per call; the prompts are worked off in their order. None: all in one call.
        pad_to_multiple: pad a batch to a multiple of so many tokens; 1 pads to its longest row.
        compare_unpadded: also generate from each prompt alone, not timed, and tell which rows differ.
        prompt_share: if given, each prompt is repeated to this share of the room that the model's context leaves
            (context - max_new_tokens): 1 fills it, more than 1 is beyond it.
        max_prompt_tokens: a prompt holds so many tokens at most, even where the context has room for more.
        empty_prompt: what a text without tokens becomes: an `error`, or one start token (`bos`; a tokenizer that
            has none gives its EOS, the separator of documents).
        overlong_prompt: what a prompt becomes that is longer than the context or `max_prompt_tokens` allows: an
            `error`, or its last tokens (`truncate`).
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
        corpus: `builtin`, `pydoc`, or the path of a `.txt`/`.jsonl` file.
        protocol: `documents` (each text on its own, padded batches) or `rolling` (all texts as one stream,
            overlapping windows); figures of the two are never compared.
        max_length: of `documents`: tokens of a document that are scored at most; the rest is cut, counted and
            reported. Of `rolling`: tokens that the model reads at most to predict one.
        stride: of `rolling`: new tokens of each window after the first; 0: `max_length`, the cheapest.
        bos_rule: what is put before each text, or before the stream: `tokenizer`, `model` or `none`; see
            `llmtrack.quality.encoding`.
        max_tokens: of `rolling`: only so many tokens of the stream are used; 0: all.
        batch_size: documents or windows per batch; None: as many as memory has room for. It does not change the result.
        padding_side: `right` or `left`; does not change the result.
        verbose: print a line per batch.
        workers: workers that score it together, each with a copy of the model; None: as many as a
            cluster has room for. It does not change the result.

    Raises:
        UsageError: a setting is unknown or impossible, or belongs to the other protocol.
    """

    corpus: ScoredText = BUILTIN_TEXT
    protocol: Annotated[str, Option("Each text on its own, or all as one stream.", choices=PROTOCOLS)] = "documents"
    max_length: Annotated[int, Option("Tokens of a document, or read in a window, at most.", min=2)] = 512
    stride: Annotated[int, Option("rolling: new tokens of each window; 0: max-length.", min=0)] = 0
    bos_rule: Annotated[
        str,
        Option(
            "What is put before a text: what the tokenizer adds, the model's BOS or EOS, or nothing.",
            choices=BOS_RULES,
        ),
    ] = "tokenizer"
    max_tokens: Annotated[int, Option("rolling: tokens of the stream that are used at most; 0: all.", min=0)] = 0
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
        if self.stride > self.max_length:
            raise UsageError(
                f"stride {self.stride} is not possible: use 1 to max_length, which is {self.max_length}, "
                "or 0 for max_length"
            )
        if self.max_tokens == 1:
            raise UsageError(f"max_tokens {self.max_tokens} is not possible: use 2 or more, or 0 for all")

    @property
    def window_stride(self) -> int:
        """The stride that is used, 0 where there are no windows."""
        return (self.stride or self.max_length) if self.protocol == "rolling" else 0


@dataclass(frozen=True)
class ShardTask(PerplexityTask):
    """Score one shard of a corpus, as one of several workers; what it gives is put together by `llmtrack.quality.shards`.

    Attributes:
        number: which shard, from 0.
        of: number of shards.
        occasion: the same for all shards of one scoring: what a worker made of the text for one of them serves the others.
    """

    number: int = 0
    of: int = 1
    occasion: str = ""


@dataclass(frozen=True)
class TrainTask(Checked):
    """Train a model on a corpus, of which a part is held out.

    Perplexity on the held-out part, before and after, is that of `PerplexityTask` with `protocol=rolling`,
    `max_length` of `sequence_length`, stride 0 and `max_tokens` of `validation_tokens`.

    Attributes:
        corpus: as in `PerplexityTask`.
        start: `weights` (go on from the model's), `scratch` (its shape only, which must be a `synthetic:` preset's;
            fresh weights, and a tokenizer trained on the corpus), or `auto`: `scratch` for a `synthetic:` model.
        split: what is held out: see `llmtrack.train.split`.
        validation_share: share of the characters that is held out.
        validation_tokens: only so many tokens of the held-out part are scored; 0: all.
        sequence_length: tokens that a training window reads.
        window_stride: tokens between the beginnings of training windows; 0: `sequence_length`.
        batch_size: windows per forward pass.
        accumulate: forward passes whose gradients make one step.
        steps: optimizer steps.
        learning_rate: the highest.
        warmup_steps: steps until it is reached.
        weight_decay: of AdamW, on matrices.
        clip_norm: norm of the gradient at most; 0: as it comes.
        eval_every: steps between evaluations.
        patience: evaluations without a better one that end training early; 0: never.
        seed: of the order of windows, of fresh weights and of dropout.
        sample_tokens: tokens of the text that is generated at each evaluation; 0: none.
        log_checkpoint: keep the best checkpoint in MLflow as files (`artifact`), and as an MLflow model beside them (`model`),
            or only in the output folder (`none`).
        explain: print how the loss of one window comes about.
        output: folder of the checkpoints; training goes on from the newest there.

    Raises:
        UsageError: a setting is unknown or impossible.
    """

    corpus: ScoredText = PYDOC
    start: Annotated[
        str,
        Option(
            "The model's weights, or fresh ones in the shape of a synthetic: preset, which auto takes to be meant by one.",
            choices=STARTS,
        ),
    ] = "auto"
    split: Annotated[str, Option("Hold out whole documents, or the end of the text.", choices=SPLITS)] = "auto"
    validation_share: Annotated[float, Option("Share of the text that is held out.", above=0, below=1)] = 0.1
    validation_tokens: Annotated[int, Option("Held-out tokens that are scored at most; 0: all.", min=0)] = 0
    sequence_length: Annotated[int, Option("Tokens that a window reads.", min=2)] = 256
    window_stride: Annotated[int, Option("Tokens between windows; 0: sequence-length.", min=0)] = 0
    batch_size: Annotated[int, Option("Windows per forward pass.", min=1)] = 8
    accumulate: Annotated[int, Option("Forward passes per step.", min=1)] = 1
    steps: Annotated[int, Option("Optimizer steps.", min=1)] = 300
    learning_rate: Annotated[float, Option("The highest.", above=0)] = 1e-3
    warmup_steps: Annotated[int, Option("Steps until the learning rate is reached.", min=0)] = 20
    weight_decay: Annotated[float, Option("Of AdamW, on matrices.", min=0)] = 0.1
    clip_norm: Annotated[float, Option("Norm of the gradient at most; 0: as it comes.", min=0)] = 1.0
    eval_every: Annotated[int, Option("Steps between evaluations.", min=1)] = 50
    patience: Annotated[int, Option("Evaluations without a better one that end it; 0: never.", min=0)] = 0
    seed: Annotated[int, Option("Of the order, of fresh weights and of dropout.", min=0)] = 0
    sample_tokens: Annotated[int, Option("Tokens generated at each evaluation; 0: none.", min=0)] = 32
    log_checkpoint: Annotated[
        str,
        Option(
            "Keep the best checkpoint in MLflow as files, as an MLflow model beside them, or only in the output folder.",
            choices=KEPT_CHECKPOINTS,
        ),
    ] = "artifact"
    explain: Annotated[bool, Option("Print how the loss of one window comes about.", tracked=False)] = False
    output: Annotated[str, Option("Folder of the checkpoints; none: one in .llmtrack/training.", tracked=False)] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window_stride > self.sequence_length:
            raise UsageError(
                f"window_stride {self.window_stride} is not possible: use 1 to sequence_length, which is "
                f"{self.sequence_length}, or 0 for sequence_length"
            )
        self.scoring  # noqa: B018 - has settings of its own to check

    @property
    def scoring(self) -> PerplexityTask:
        """How the held-out part is scored."""
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


def not_asked(task: Task) -> tuple[str, ...]:
    """Return the settings of a task that are no part of what is asked: where it writes, what it prints, a single worker."""
    if isinstance(task, TrainTask):
        return ("output", "explain")
    # What is not asked for does not count: an id stays what it was before there was such a setting.
    return ("workers",) if isinstance(task, PerplexityTask) and task.workers == 1 else ()


def workload_id(task: Task, corpus_digest: str = "") -> str:
    """Digest of the work itself: prompts and lengths, or the corpus and how it is cut.

    What is scored beside a timed task (`Scenario.quality`) is not part of it: params tell its convention.
    Settings that change how the work is done and not what it is (cache, padding, batch size of scoring)
    are left out: scenarios of one workload may be compared.
    """
    if isinstance(task, GenerateTask):
        work: list[Any] = [task.prompts, task.prompt_tokens, task.max_new_tokens, task.ignore_eos]
        lengths = [task.prompt_share, task.max_prompt_tokens]
        work += lengths if any(length is not None for length in lengths) else []
    elif isinstance(task, TrainTask):
        # Models are compared by the same held-out text, scored alike; how they were trained is what is compared.
        held_out = [task.split, task.validation_share, task.validation_tokens]
        work = [corpus_digest, *held_out, task.sequence_length]
    else:
        convention = [task.protocol, task.max_length, task.window_stride, task.bos_rule, task.max_tokens]
        work = [corpus_digest, *convention]
    # A shard's is that of its text, which is told from none that one worker scored.
    kind = PerplexityTask if isinstance(task, PerplexityTask) else type(task)
    return digest([kind.__name__, *work])
