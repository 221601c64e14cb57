"""The interface that every backend fits under: generate token by token, and score.

An engine does not time anything. It calls `on_step` when the tokens of a decode step have reached the
host; `llmtrack.measure.timing` owns the clock, so every backend is timed in the same way. Where a GPU works ahead of
the host, waiting for each step would slow it down: then the engine hands back when the GPU itself had each step done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llmtrack.spec.options import NoOptions
from llmtrack.spec.scenario import Scalar, Variant

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    Spans = Sequence[tuple[int, int]] | NDArray[np.int64]
    """Begin and end of stretches; of many, an array (stretches, 2)."""


@dataclass(frozen=True)
class GenerateRequest:
    """One call of `generate`: token ids in, greedy decoding, a batch padded to its longest row.

    Attributes:
        prompt_ids: token ids of each row, pads excluded.
        max_new_tokens: new tokens per row at most.
        use_cache: whether the KV cache is used.
        padding_side: `left` or `right`.
        ignore_eos: suppress the end-of-sequence token, so that every row gets `max_new_tokens` tokens.
        pad_to_multiple: pad the batch to a multiple of so many tokens; 1 pads to its longest row.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    use_cache: bool = True
    padding_side: str = "left"
    ignore_eos: bool = True
    pad_to_multiple: int = 1

    @property
    def padded_length(self) -> int:
        """Tokens of each row once the batch is padded."""
        longest = max(len(row) for row in self.prompt_ids)
        return -(-longest // self.pad_to_multiple) * self.pad_to_multiple


@dataclass(frozen=True)
class Generated:
    """What one call of `generate` returned.

    Attributes:
        new_ids: the new token ids of each row, up to and including its first end-of-sequence token
            (when that is not suppressed); pads after it are not counted.
        step_seconds: returns the seconds from the beginning of the call to each step, where the device works ahead of
            the host; called after the call, since to read its clock takes time. None: `on_step` was called when each
            was there.
    """

    new_ids: tuple[tuple[int, ...], ...]
    step_seconds: Callable[[], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        names: text of each special token by its id.
        bos_id: beginning of a sequence, or None.
        eos_id: end of a sequence, or None.
        unk_id: what stands for text that the vocabulary does not have, or None.
        prefix: what the tokenizer puts before every text by itself.
    """

    names: Mapping[int, str]
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    prefix: tuple[int, ...] = ()

    @property
    def start_id(self) -> int | None:
        """The token that a sequence without a prompt starts from: the BOS, what texts begin with, or the EOS."""
        if self.bos_id is not None:
            return self.bos_id
        return self.prefix[-1] if self.prefix else self.eos_id


@dataclass(frozen=True)
class Tokenized:
    """A text as tokens, and which part of it each of them covers.

    Attributes:
        ids: the token ids.
        spans: for each token the UTF-8 bytes of the text that it covers, as begin and end: in order and apart, empty
            where it stands for no text. White space belongs to the token after it. None: the tokenizer does not tell.
        added: tokens at the front that stand for no text: the tokenizer put them there.
    """

    ids: list[int]
    spans: Spans | None
    added: int = 0


@dataclass(frozen=True)
class EngineInfo:
    """Facts about a loaded engine.

    Attributes:
        model_id: the candidate that was really loaded.
        device: `cpu` or `cuda:N`.
        dtype_label: dtype of the loaded parameters, with the reason where it is not the one asked for.
        model_size_bytes: bytes of the weights, tied ones counted once.
        step_weight_bytes: bytes of the weights that one decode step of one row reads.
        kv_bytes_per_token: bytes of KV cache that one token of one row takes, as long as no window is full.
        context_length: positions the model was made for, or None if unknown.
        vocab_size: width of the logits.
        load_time_s: seconds to load the weights, without fetching or converting them; None if unknown.
        file_size_bytes: bytes of the weights' files on disk; None where there are none.
        facts: further params to track (revision, architecture, parameter count ...).
        tags: provenance to track (weights digest, library versions ...).
        warnings: findings in words, such as random weights or emulated arithmetic.
        special_tokens: the tokenizer's special tokens.
        texts: artifacts to track beside each measurement, by file name: what a quantization left out, and why.
        series: values per step to track beside each measurement, by name.
        folder: local folder that holds all of the model and its tokenizer; empty where there is none.
        kv_windows: (tokens, bytes per token) of the layers that keep at most so many tokens; their bytes are part of
            `kv_bytes_per_token`.
        state_bytes: bytes of a row's state that does not grow: of recurrent layers, and caches of a fixed size.
        score_bytes_per_token: bytes that each token of a batch takes at least while the batch is scored at once; 0 where its
            rows are computed one by one, or it is not known.
        operations: floating-point operations of a token; None: not known.
        devices: devices that hold parts of the model; sizes and operations are those of all.
        parallel: of them, those that compute at once, each on its share of every layer.
        arithmetic: what its matrix products are computed in: `float32`, `tf32`, `float16`, `bfloat16`; empty: not known.
        pads: whether rows of unequal lengths are filled up with pads that are computed, too.
    """

    model_id: str
    device: str
    dtype_label: str
    model_size_bytes: int
    step_weight_bytes: int
    kv_bytes_per_token: int
    context_length: int | None
    vocab_size: int
    load_time_s: float | None = None
    file_size_bytes: int | None = None
    facts: dict[str, Scalar] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    special_tokens: SpecialTokens = SpecialTokens({})
    texts: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    folder: str = ""
    kv_windows: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0
    score_bytes_per_token: int = 0
    operations: Operations | None = None
    arithmetic: str = ""
    pads: bool = True
    devices: int = 1
    parallel: int = 1

    @property
    def cache(self) -> CacheGrowth:
        """Bytes of a row's state, by its tokens."""
        return CacheGrowth(self.kv_bytes_per_token, self.kv_windows, self.state_bytes)


@dataclass(frozen=True)
class Backend:
    """A backend that takes options: what an entry point names instead of its function `load`.

    Attributes:
        load: turns a variant into an engine; `llmtrack.spec.options.chosen(options, variant.options)` reads its options.
        options: what it can be told: a frozen dataclass, each field with an `Option` (see `llmtrack.options`).
        precisions: dtypes that it can be asked for, the most exact first.
    """

    load: Callable[[Variant], Engine]
    options: type = NoOptions
    precisions: tuple[str, ...] = ("float32",)


class Engine(Protocol):
    """A loaded model and its tokenizer, ready to generate and to score."""

    @property
    def info(self) -> EngineInfo:
        """Facts about what is loaded."""
        ...

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text that is to go on, as the model expects them.

        They begin with what the tokenizer puts before every text (a BOS ...), unless the text begins with it already;
        what it puts after every text is left out. Without `special_tokens` nothing is added.
        """
        ...

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """Return the same token ids, and the part of the text that each of them covers."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        ...

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` once for each step as its tokens reach the host (see `Generated`)."""
        ...

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score next-token prediction over padded rows.

        Args:
            input_ids: (rows, length) token ids.
            attention_mask: (rows, length), 1 for real tokens and 0 for pads on either side.
            scored: (rows, length) booleans: the tokens whose prediction counts; None: every one.

        Returns:
            Per row: the summed negative log-likelihood in nats (float64) and the number of predicted
            tokens that count (int64). A token is predicted from the real token before it; a row of n real
            tokens has n - 1. The last column is only predicted, so that rows may be one token longer than
            what the model reads.
        """
        ...

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return (tokens, vocabulary) float32 logits on the host: what may follow each token of one row without pads."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all work given to it."""
        ...

    def reset_peak_memory(self) -> None:
        """Begin a new peak-memory reading."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the last reset (CUDA allocator; on CPU the resident set), None if unknown."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """An engine that makes something ready for each shape of a request, such as compiled code."""

    def prepare(self, request: GenerateRequest) -> float:
        """Make ready what a request needs; return the seconds that it took, 0 if it was ready."""
        ...


@dataclass(frozen=True)
class CacheGrowth:
    """Bytes of the state of one row, as a function of the tokens that it has seen.

    Attributes:
        per_token: bytes that a token takes, in all layers together, as long as no window is full.
        windows: (tokens, bytes per token) of those layers that hold at most so many tokens.
        constant: bytes that are there at any length: recurrent and convolution states, caches of a fixed size.
    """

    per_token: int
    windows: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def bytes_at(self, tokens: int) -> int:
        """Return the bytes that attention to so many tokens, or a step after them, reads."""
        unbounded = self.per_token - sum(size for _, size in self.windows)
        bounded = sum(size * min(tokens, window) for window, size in self.windows)
        return self.constant + unbounded * tokens + bounded

    def attended(self, tokens: int) -> float:
        """Return how many of so many tokens a layer attends to, on the average over what the layers keep of each."""
        return (self.bytes_at(tokens) - self.constant) / self.per_token if self.per_token else 0.0


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of the matrix products that one token of one row takes: two for each multiply-add.

    Attributes:
        per_token: beside attention, the head included.
        per_context: for each token that it attends to, in all layers together.
        head: of `per_token`, those that turn a hidden state into logits: a prefill needs them once a row.
    """

    per_token: int
    per_context: int = 0
    head: int = 0
