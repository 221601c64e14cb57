"""The interface of every backend: generate token by token, and score.

An engine does not time anything. It calls `on_step` when the tokens of a decode step have reached the host;
`llmtrack.measure.timing` owns the clock, so that all backends are timed alike. A GPU that runs ahead of the host would
be slowed by waiting for each step: such an engine returns the GPU's own timestamps instead.
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
    """Start and end of spans; many of them as an array (spans, 2)."""


@dataclass(frozen=True)
class GenerateRequest:
    """A call of `generate`: greedy decoding of a batch padded to its longest row.

    Attributes:
        prompt_ids: token ids of each row, without pads.
        max_new_tokens: maximum new tokens per row.
        padding_side: `left` or `right`.
        ignore_eos: suppress the end-of-sequence token, so that every row gets `max_new_tokens` tokens.
        pad_to_multiple: pad the batch to a multiple of this many tokens; 1 pads to its longest row.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    use_cache: bool = True
    padding_side: str = "left"
    ignore_eos: bool = True
    pad_to_multiple: int = 1

    @property
    def padded_length(self) -> int:
        """Tokens per row of the padded batch."""
        longest = max(len(row) for row in self.prompt_ids)
        return -(-longest // self.pad_to_multiple) * self.pad_to_multiple


@dataclass(frozen=True)
class Generated:
    """Output of a call of `generate`.

    Attributes:
        new_ids: new token ids of each row, up to and including its first end-of-sequence token (unless suppressed),
            without pads after it.
        step_seconds: returns the seconds from the start of the call to each step, if the device runs ahead of the host;
            called after the call, because reading timestamps takes time. None if `on_step` was called in time.
    """

    new_ids: tuple[tuple[int, ...], ...]
    step_seconds: Callable[[], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        names: text of each special token by id.
        bos_id: beginning of a sequence.
        eos_id: end of a sequence.
        unk_id: unknown token.
        prefix: ids that the tokenizer puts before every text.
    """

    names: Mapping[int, str]
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    prefix: tuple[int, ...] = ()

    @property
    def start_id(self) -> int | None:
        """Start token of a sequence without a prompt: the BOS, else the last prefix token, else the EOS."""
        if self.bos_id is not None:
            return self.bos_id
        return self.prefix[-1] if self.prefix else self.eos_id


@dataclass(frozen=True)
class Tokenized:
    """A text as tokens, with the part of the text that each token covers.

    Attributes:
        spans: start and end of the UTF-8 bytes that each token covers: ordered and disjoint, empty for tokens without
            text. White space belongs to the token after it. None if the tokenizer reports no offsets.
        added: number of leading tokens added by the tokenizer.
    """

    ids: list[int]
    spans: Spans | None
    added: int = 0


@dataclass(frozen=True)
class EngineInfo:
    """Facts about a loaded engine.

    Attributes:
        model_id: the candidate that was loaded.
        device: `cpu` or `cuda:N`.
        dtype_label: dtype of the loaded parameters, with the reason if it is not the one requested.
        model_size_bytes: bytes of the weights, tied ones counted once.
        step_weight_bytes: bytes of the weights that one decode step of one row reads.
        kv_bytes_per_token: bytes of KV cache per token of a row while no window is full.
        context_length: maximum positions of the model, or None if unknown.
        vocab_size: width of the logits.
        load_time_s: seconds to load the weights, without downloading or converting them; None if unknown.
        file_size_bytes: bytes of the weight files; None if there are none.
        facts: further params to track (revision, architecture, parameter count ...).
        tags: provenance to track (weights digest, library versions ...).
        warnings: such as random weights or emulated arithmetic.
        texts: artifacts to track beside each measurement, by file name: layers skipped by a quantization, and why.
        series: values per step to track beside each measurement, by name.
        folder: local folder of the model and its tokenizer; empty if there is none.
        kv_windows: (tokens, bytes per token) of layers with a sliding window; their bytes are part of
            `kv_bytes_per_token`.
        state_bytes: constant bytes of state per row: of recurrent layers, and fixed-size caches.
        score_bytes_per_token: minimum bytes per token of a batch while scoring; 0 if rows are scored one by one, or if
            unknown.
        operations: floating-point operations per token; None if unknown.
        devices: number of devices that hold parts of the model; sizes and operations are totals.
        parallel: number of them that compute at once, each on its share of every layer.
        arithmetic: of the matrix products: `float32`, `tf32`, `float16`, `bfloat16`; empty if unknown.
        pads: whether rows of unequal lengths are padded, so that pads are computed.
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
        """Bytes of a row's state by its tokens."""
        return CacheGrowth(self.kv_bytes_per_token, self.kv_windows, self.state_bytes)


@dataclass(frozen=True)
class Backend:
    """A backend with options: an entry point may name this instead of a `load` function.

    Attributes:
        load: load a variant as an engine; `llmtrack.spec.options.chosen(options, variant.options)` reads its options.
        options: a frozen dataclass, each field with an `Option` (see `llmtrack.options`).
        precisions: supported dtypes, the most exact first.
    """

    load: Callable[[Variant], Engine]
    options: type = NoOptions
    precisions: tuple[str, ...] = ("float32",)


class Engine(Protocol):
    """A loaded model and its tokenizer, ready to generate and to score."""

    @property
    def info(self) -> EngineInfo:
        """Facts about the loaded model."""
        ...

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text to continue, as the model expects them.

        They start with the tokenizer's prefix (a BOS ...), unless the text already does; its suffix is left out.
        Without `special_tokens` nothing is added.
        """
        ...

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """Like `encode`, with the part of the text that each token covers."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        ...

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily; call `on_step` once per step as its tokens reach the host (see `Generated`)."""
        ...

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score next-token prediction over padded rows.

        Args:
            input_ids: (rows, length) token ids.
            attention_mask: (rows, length), 1 for tokens and 0 for pads, on either side.
            scored: (rows, length) booleans: tokens whose prediction counts; None for all.

        Returns:
            Per row: the summed negative log-likelihood in nats (float64) and the number of predicted tokens that count
                (int64). A token is predicted from the token before it; a row of n tokens has n - 1 predictions, so that
                one of a single token returns 0 and 0. The last column is only predicted: rows may be one token longer
                than the context.
        """
        ...

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return float32 logits (tokens, vocabulary) on the host for one row without pads."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        ...

    def reset_peak_memory(self) -> None:
        """Reset the peak memory."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the last reset (CUDA allocator; on CPU the resident set), or None if unknown."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """An engine that prepares for each request shape, such as by compiling."""

    def prepare(self, request: GenerateRequest) -> float:
        """Prepare for a request; return the seconds that it took, 0 if it was ready."""
        ...


@dataclass(frozen=True)
class CacheGrowth:
    """Bytes of a row's state as a function of its tokens.

    Attributes:
        per_token: bytes per token over all layers while no window is full.
        windows: (tokens, bytes per token) of the sliding-window layers.
        constant: bytes at any length: recurrent and convolution states, fixed-size caches.
    """

    per_token: int
    windows: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def bytes_at(self, tokens: int) -> int:
        """Return the bytes read by attention over this many tokens."""
        unbounded = self.per_token - sum(size for _, size in self.windows)
        bounded = sum(size * min(tokens, window) for window, size in self.windows)
        return self.constant + unbounded * tokens + bounded

    def attended(self, tokens: int) -> float:
        """Return the mean number of tokens that a layer attends to, weighted by its bytes per token."""
        return (self.bytes_at(tokens) - self.constant) / self.per_token if self.per_token else 0.0


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of the matrix products per token of a row, two per multiply-add.

    Attributes:
        per_token: without attention, including the head.
        per_context: for each attended token, over all layers.
        head: part of `per_token` for the logits: a prefill needs it once per row.
    """

    per_token: int
    per_context: int = 0
    head: int = 0
