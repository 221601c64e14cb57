"""Base classes of the built-in engines: text methods, and running a model folder's files on the host."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from llmtrack.engine import EngineInfo, Generated, GenerateRequest, Tokenized
from llmtrack.engines.rows import recache_length, sharing_by_rope
from llmtrack.errors import FailureKind, LlmtrackError, ScenarioError, UsageError, is_out_of_memory
from llmtrack.host.packages import installed_version
from llmtrack.measure.memory import peak_rss_bytes, reset_peak_rss
from llmtrack.models.load_errors import reason_of
from llmtrack.models.safe_view import LOCAL
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.tensors import tokens
from llmtrack.tensors.likelihood import predicted, sum_nll
from llmtrack.tensors.padding import pad_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmtrack.convert.conversion import Conversion
    from llmtrack.models.folder import ModelFolder

    Step = Callable[[NDArray[np.int64], NDArray[np.int64], bool], NDArray[np.int64]]

Named = TypeVar("Named", bound="WithTokenizer")


def peak_warnings() -> tuple[str, ...]:
    """Reset the peak memory; warn if this system cannot."""
    return () if reset_peak_rss() else ("peak memory is since process start: this system cannot reset it",)


def require_cpu(variant: Variant) -> None:
    """Reject devices and dtypes that a float32 CPU backend does not support.

    Raises:
        UsageError: another device is requested.
        ScenarioError: another precision is requested.
    """
    if variant.device not in ("auto", "cpu"):
        raise UsageError(f"the {variant.backend} backend runs on the CPU here: use device=cpu, not {variant.device}")
    require_float32(variant)


def require_float32(variant: Variant) -> None:
    """Raise a ScenarioError if another precision is requested."""
    if variant.dtype != "float32":
        raise ScenarioError(
            f"the {variant.backend} backend has no {variant.dtype}: use dtype=float32, with a quantization to store less",
            kind="unsupported",
        )


@contextmanager
def runtime_errors(runtime: str) -> Iterator[None]:
    """Convert a runtime's exceptions to one-line `ScenarioError`s with the remedy."""
    try:
        yield
    except LlmtrackError:
        raise
    except Exception as error:
        kind: FailureKind = "out_of_memory" if is_out_of_memory(error) else "unsupported"
        remedy = "use a smaller batch or model" if kind == "out_of_memory" else "use backend=torch"
        raise ScenarioError(f"{runtime} cannot run it: {reason_of(error)[:300]} ({remedy})", kind=kind) from error


class WithTokenizer:
    """The info and text methods of an engine with a transformers tokenizer."""

    tokenizer: Any
    _info: EngineInfo

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return self._info

    def named_after(self: Named, folder: ModelFolder, **facts: Scalar) -> Named:
        """Return this engine, loaded from a model's folder, with the model's name and facts, and these."""
        info = self._info
        self._info = replace(
            info,
            model_id=folder.model_id,
            facts={**info.facts, **folder.facts, **facts},
            tags={**info.tags, **folder.tags},
            warnings=(*folder.warnings, *info.warnings),
        )
        return self

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """See `Engine.encode`."""
        return tokens.encode(self.tokenizer, text, special_tokens)

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """See `Engine.tokenize`."""
        return tokens.tokenize(self.tokenizer, text, special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Engine.decode`."""
        return tokens.decode(self.tokenizer, ids)


class HostEngine(WithTokenizer, ABC):
    """An engine that runs a folder's files, and whose calls return when their results are on the host.

    Args:
        folder: contains the model's config, special ids and transformers tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, GenerationConfig

        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), **LOCAL)
        self._config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._vocab_size = int(self._config["vocab_size"])
        self._pad_id = tokens.pad_id(self.tokenizer, self._vocab_size)
        self._eos_ids = tokens.eos_ids(GenerationConfig.from_pretrained(str(folder)), self.tokenizer)
        self._end_tokens = sorted(token for token in self._eos_ids if token < self._vocab_size)
        self._sharing = sharing_by_rope(self._config)
        self._recache_at = recache_length(self._config)

    @property
    def architecture(self) -> str:
        """Class name of the model."""
        return str((self._config.get("architectures") or ["unknown"])[0])

    @abstractmethod
    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """See `Engine.generate`."""

    def _generate(self, request: GenerateRequest, on_step: Callable[[], None], step: Step) -> Generated:
        """Generate step by step from padded rows, by the rules of transformers' `generate`: a finished row gets pads
        until all have finished.

        Args:
            step: maps new tokens (rows, new), the attention mask (rows, past + new), and whether earlier tokens are
                cached, to the next token of each row (rows,).

        Raises:
            ScenarioError: the rows have pads, which would change this model's output.
        """
        self._sharing.check(request)
        padded = pad_rows(request.prompt_ids, self._pad_id, request.padding_side, request.padded_length)
        ids, mask = (tensor.numpy() for tensor in padded)
        ended = np.zeros(len(ids), dtype=bool)
        columns: list[NDArray[np.int64]] = []
        new, cached = ids, False
        for _ in range(request.max_new_tokens):
            token = np.where(ended, self._pad_id, step(new, mask, cached))
            on_step()
            columns.append(token)
            if not request.ignore_eos:
                ended |= np.isin(token, list(self._eos_ids))
                if ended.all():
                    break
            mask = np.concatenate([mask, np.ones((len(ids), 1), dtype=np.int64)], axis=1)
            ids = np.concatenate([ids, token[:, None]], axis=1)
            cached = request.use_cache and ids.shape[1] != self._recache_at
            new = token[:, None] if cached else ids
        eos_ids = frozenset() if request.ignore_eos else self._eos_ids
        rows = np.stack(columns, axis=1).tolist()
        return Generated(tuple(tokens.until_eos(row, eos_ids) for row in rows))

    def _most_likely(self, logits: NDArray[np.float32], request: GenerateRequest) -> NDArray[np.int64]:
        """Return the most likely token of each row, excluding end tokens if they are ignored.

        Args:
            logits: (rows, vocabulary); overwritten.
        """
        if request.ignore_eos:
            logits[:, self._end_tokens] = -np.inf
        chosen: NDArray[np.int64] = logits.argmax(axis=1)
        return chosen

    @abstractmethod
    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""

    def _logits_in_parts(self, ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield `next_token_logits` in consecutive parts; each may be overwritten by the next."""
        yield self.next_token_logits(ids)

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score next-token prediction; see `Engine.score`.

        Each row is computed alone and without pads, so that quantization ranges never span several rows.
        """
        valid = predicted(attention_mask, scored)
        sums = torch.zeros(len(valid), dtype=torch.float64)
        for number, (ids, real, counts) in enumerate(zip(input_ids, attention_mask.bool(), valid, strict=True)):
            if not counts.any():
                continue
            row, begin = ids[real], 0
            # Tokens are contiguous, so the predictions of all but the first follow in order.
            counted = counts[real[1:] & real[:-1]]
            for logits in self._logits_in_parts(row[:-1].tolist()):
                part = slice(begin, begin + len(logits))
                sums[number] += sum_nll(
                    logits[None], row[None, 1:][:, part], counted[None, part], lambda logits: logits, logits.shape[1]
                )[0]
                begin += len(logits)
        return sums, valid.sum(dim=1)

    def synchronize(self) -> None:
        """Do nothing: calls return when their results are on the host."""

    def reset_peak_memory(self) -> None:
        """See `Engine.reset_peak_memory`."""
        reset_peak_rss()

    def peak_memory_bytes(self) -> int | None:
        """See `Engine.peak_memory_bytes`."""
        return peak_rss_bytes()

    @abstractmethod
    def close(self) -> None:
        """See `Engine.close`."""


class ConvertedEngine(HostEngine):
    """Engine of a folder made by its runtime's own conversion tool, on the CPU.

    Args:
        conversion: the folder, with the model's own config and tokenizer.
    """

    def __init__(self, conversion: Conversion, threads: int) -> None:
        super().__init__(conversion.folder)
        self._conversion, self._threads = conversion, threads

    @classmethod
    def open_folder(cls, folder: Path) -> ConvertedEngine:
        """Open the folder of a converted model with one thread.

        Raises:
            ScenarioError: it cannot be run.
        """
        from llmtrack.convert.conversion import Conversion

        return cls(Conversion(folder, str(folder), "as stored"), 1)

    @abstractmethod
    def decoded_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `llmtrack.convert.fidelity.DecodingEngine`."""

    def _describe(
        self,
        files: Iterable[Path],
        weight_bytes: tuple[int, int],
        load_time_s: float,
        facts: dict[str, Scalar],
        packages: Sequence[str],
        *,
        kv_bytes_per_token: int,
        context_length: int | None,
    ) -> EngineInfo:
        """Describe the engine, and start measuring its peak memory.

        Args:
            files: graph and weights.
            weight_bytes: bytes of all weights, and of those that a decode step reads.
            packages: names of the runtime's packages.
            context_length: maximum number of tokens; None: unlimited.
        """
        conversion = self._conversion
        stored, read = weight_bytes
        return EngineInfo(
            model_id=conversion.model_id,
            device="cpu",
            dtype_label=conversion.dtype_label,
            model_size_bytes=stored,
            step_weight_bytes=read,
            kv_bytes_per_token=kv_bytes_per_token,
            context_length=context_length,
            vocab_size=self._vocab_size,
            load_time_s=load_time_s,
            file_size_bytes=sum(path.stat().st_size for path in files),
            facts={**conversion.facts, "threads": self._threads, **facts, "architecture": self.architecture},
            tags={**conversion.tags, **{name: installed_version(name) for name in packages}},
            warnings=conversion.warnings + peak_warnings() + self._sharing.warnings,
            special_tokens=tokens.special_tokens(self.tokenizer),
            folder=str(conversion.folder),
        )
