"""Run a GGUF file with llama.cpp: token ids in, logits out, with a persistent KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.errors import FailureKind, ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.llamacpp.library import FLASH_ATTENTION, last_error, library

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 256
"""Maximum number of sequences in llama.cpp."""

_CHUNK_BYTES = 64 * MIB
_OUT_OF_SPACE = 1


@dataclass(frozen=True)
class Capacity:
    """Capacity of a context, which is reused while it suffices: creating one is expensive."""

    rows: int = 0
    tokens_per_row: int = 0
    tokens_per_call: int = 0
    logits_per_call: int = 0

    def holds(self, other: Capacity) -> bool:
        """Return whether it covers another capacity."""
        return self.union(other) == self

    def union(self, other: Capacity) -> Capacity:
        """Return the capacity for both."""
        return Capacity(*map(max, astuple(self), astuple(other)))


class LlamaDecoder:
    """A GGUF file opened by llama.cpp, with its state.

    Args:
        ubatch: maximum tokens per pass.
        flash_attention: a key of `FLASH_ATTENTION`.
        cache_type: type of cached keys and values, of `CACHE_TYPES`.

    Raises:
        MissingDependencyError: llama.cpp is not installed.
        ScenarioError: llama.cpp cannot run the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        ubatch: int = 512,
        flash_attention: str = "auto",
        cache_type: str = "f16",
    ) -> None:
        self._cpp = cpp = library()
        self._threads, self._ubatch = threads, ubatch
        self._flash_attention, self._cache_type = flash_attention, cache_type
        settings = cpp.llama_model_default_params()
        settings.devices = cpp.no_devices()
        settings.n_gpu_layers = 0
        last_error()
        self._model = cpp.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise ScenarioError(f"llama.cpp cannot run {path.name}: {last_error()}", kind="unsupported")
        if cpp.llama_model_has_encoder(self._model) or not cpp.llama_model_has_decoder(self._model):
            cpp.llama_model_free(self._model)
            raise ScenarioError(f"{path.name} is not a decoder: choose a causal language model", kind="unsupported")
        self.vocab = cpp.llama_model_get_vocab(self._model)
        self.vocab_size = int(cpp.llama_vocab_n_tokens(self.vocab))
        self.context_length = int(cpp.llama_model_n_ctx_train(self._model))
        self.weight_bytes = int(cpp.llama_model_size(self._model))
        self.parameters = int(cpp.llama_model_n_params(self._model))
        self._context: Any = None
        self._batch: Any = None
        self._capacity = Capacity()

    def start(self, rows: int, tokens: int, outputs: int) -> None:
        """Clear the cache and ensure capacity.

        Args:
            rows: number of sequences.
            tokens: final length of the longest.
            outputs: maximum number of logits per call.

        Raises:
            ScenarioError: there are too many rows for llama.cpp, or too little memory.
        """
        if rows > MAX_ROWS:
            raise ScenarioError(
                f"llama.cpp supports at most {MAX_ROWS} sequences, not {rows}: use a smaller batch_size",
                kind="unsupported",
            )
        required = Capacity(rows, tokens, max(rows * tokens, outputs), outputs)
        if not self._capacity.holds(required):
            self._make(self._capacity.union(required))
        self._cpp.llama_memory_clear(self._cpp.llama_get_memory(self._context), False)

    def run(
        self, ids: Sequence[Sequence[int]], begins: Sequence[int], rows: Sequence[int], keep: str = "last"
    ) -> NDArray[np.float32]:
        """Continue rows with their next tokens; return (tokens, vocabulary) logits, which the next call overwrites.

        Args:
            ids: tokens per row.
            begins: number of earlier tokens per row.
            rows: row numbers.
            keep: logits of the `last` token of each row, or of `all`.

        Raises:
            ScenarioError: llama.cpp failed.
        """
        batch, count = self._batch, 0
        for tokens, begin, row in zip(ids, begins, rows, strict=True):
            for position, token in enumerate(tokens, start=begin):
                batch.token[count] = token
                batch.pos[count] = position
                batch.n_seq_id[count] = 1
                batch.seq_id[count][0] = row
                batch.logits[count] = keep == "all" or position == begin + len(tokens) - 1
                count += 1
        batch.n_tokens = count
        self._decode()
        outputs = count if keep == "all" else len(rows)
        logits = self._cpp.llama_get_logits(self._context)
        return self._cpp.floats(logits, (outputs, self.vocab_size))

    def step(self, tokens: Sequence[int], begins: Sequence[int], rows: Sequence[int]) -> NDArray[np.float32]:
        """Continue each row by one token; see `run`."""
        return self.run([(token,) for token in tokens], begins, rows)

    def logits(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield (tokens, vocabulary) logits of a row in parts, each overwritten by the next, to limit memory."""
        part = max(1, min(len(ids), _CHUNK_BYTES // (4 * self.vocab_size)))
        self.start(1, len(ids), part)
        for begin in range(0, len(ids), part):
            yield self.run([ids[begin : begin + part]], [begin], [0], keep="all")

    def tokenize(self, text: str) -> list[int]:
        """Return a text's token ids by llama.cpp's implementation of the file's tokenizer, without special tokens."""
        data = text.encode()
        buffer = self._cpp.tokens(len(data) + 2)
        count = self._cpp.llama_tokenize(self.vocab, data, len(data), buffer, len(buffer), False, False)
        return list(buffer[0 : max(count, 0)])

    def close(self) -> None:
        """Free the model and all memory."""
        self._drop()
        if self._model:
            self._cpp.llama_model_free(self._model)
            self._model = None

    def _make(self, capacity: Capacity) -> None:
        """Create a context; sizes are rounded up as in llama.cpp's own tools, so that similar lengths share one."""
        self._drop()
        settings = self._cpp.llama_context_default_params()
        settings.n_seq_max = capacity.rows
        settings.n_ctx = capacity.rows * -(-capacity.tokens_per_row // 256) * 256
        settings.n_batch = capacity.tokens_per_call
        settings.n_ubatch = min(self._ubatch, capacity.tokens_per_call)
        settings.n_outputs_max = max(capacity.logits_per_call, capacity.rows)
        settings.n_threads = settings.n_threads_batch = self._threads
        settings.flash_attn_type = FLASH_ATTENTION[self._flash_attention]
        kind = getattr(self._cpp, f"GGML_TYPE_{self._cache_type.upper()}")
        settings.type_k = settings.type_v = kind
        settings.offload_kqv = settings.op_offload = False
        # Separate caches per row, so that attention only reads its own.
        settings.kv_unified = False
        settings.no_perf = True
        last_error()
        self._context = self._cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise ScenarioError(
                f"llama.cpp cannot allocate {capacity.rows} rows of {capacity.tokens_per_row:,} tokens: {last_error()}",
                kind="unsupported",
            )
        self._batch = self._cpp.llama_batch_init(capacity.tokens_per_call, 0, 1)
        self._capacity = capacity

    def _drop(self) -> None:
        if self._batch is not None:
            self._cpp.llama_batch_free(self._batch)
        if self._context:
            self._cpp.llama_free(self._context)
        self._batch, self._context, self._capacity = None, None, Capacity()

    def _decode(self) -> None:
        code = self._cpp.llama_decode(self._context, self._batch)
        if code:
            kind: FailureKind = "out_of_memory" if code == _OUT_OF_SPACE else "error"
            raise ScenarioError(f"llama.cpp failed with code {code}: {last_error()}", kind=kind)
