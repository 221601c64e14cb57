"""llama.cpp engine: a GGUF file as published, or one converted from a model folder, on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from llmtrack.engine import EngineInfo, Generated, GenerateRequest
from llmtrack.engines.base import HostEngine, peak_warnings, require_cpu
from llmtrack.engines.llamacpp_probe import try_once
from llmtrack.engines.options import LlamacppOptions
from llmtrack.errors import ScenarioError
from llmtrack.llamacpp.decoder import LlamaDecoder
from llmtrack.llamacpp.library import CACHE_TYPES, library
from llmtrack.models.folder import model_folder
from llmtrack.models.gguf_file import GgufFacts, read_facts
from llmtrack.models.load import identify_model
from llmtrack.quantize.gguf import gguf_of
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.options import chosen
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.tensors import tokens

_PROBE = "Boats come in at 6:45, naïve café;\n\tdon't 1 + 1 = 2?  中文 🚢"
"""Text by which llama.cpp's tokenizer of a file is compared with transformers'."""


@dataclass(frozen=True)
class _Source:
    """The file to run, and its metadata.

    Attributes:
        folder: the model's config and tokenizer.
        as_published: whether it is a GGUF file with its own tokenizer, not one converted from a model folder.
    """

    path: Path
    folder: Path
    model_id: str
    facts: Mapping[str, Scalar]
    tags: Mapping[str, str]
    warnings: tuple[str, ...]
    as_published: bool


def load(variant: Variant) -> LlamacppEngine:
    """Load the GGUF file of a variant, converting a model folder first if needed.

    Options of the variant: `LlamacppOptions`.

    Raises:
        MissingDependencyError: llama.cpp, or the converter, is not installed.
        UsageError: the device, dtype, quantization or an option is not supported.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: llama.cpp cannot run the file.
    """
    require_cpu(variant)
    options = chosen(LlamacppOptions, variant.options)
    cpp = library()
    source = _source(variant)
    try_once(source.path)
    settings: dict[str, Any] = {
        "threads": options.used_threads,
        "ubatch": options.ubatch,
        "flash_attention": options.flash_attention,
        "cache_type": options.cache_type,
    }
    start = time.perf_counter()
    decoder = LlamaDecoder(source.path, **settings)
    seconds = time.perf_counter() - start
    return LlamacppEngine(
        decoder,
        source,
        read_facts(source.path),
        load_time_s=seconds,
        settings=settings,
        package=(cpp.package, cpp.version),
    )


def _source(variant: Variant) -> _Source:
    """Return a GGUF model's own file if no quantization is requested, else one converted from the model's folder."""
    identity = identify_model(variant.model, variant.revision, as_gguf=variant.quantization == NONE)
    spec = identity.source.spec
    facts: dict[str, Scalar] = {"model_source": identity.source.kind, "trust_remote_code": False}
    if identity.gguf is not None and identity.folder is not None:
        tags, warnings = identity.digests.tags, identity.warnings
        return _Source(identity.gguf, identity.folder, spec, facts, tags, warnings, as_published=True)
    folder = model_folder(spec, identity.revision)
    path = gguf_of(folder, variant.quantization, variant.options)
    if variant.quantization != NONE:
        facts |= find_recipe("llamacpp", variant.quantization).resolve_options(variant.options)
    facts |= folder.facts
    skipped = tuple(warning for warning in identity.warnings if warning not in folder.warnings)
    warnings = skipped + folder.warnings
    return _Source(path, folder.path, spec, facts, folder.tags, warnings, as_published=False)


class LlamacppEngine(HostEngine):
    """Engine of a GGUF file run by llama.cpp, with its tokenizer.

    Rows of a batch have separate caches and need no pads, so that each has the same output as alone.

    Args:
        settings: params to track, including `cache_type`: type of the cached keys and values.
        package: distribution of llama.cpp, and its version.
    """

    def __init__(
        self,
        decoder: LlamaDecoder,
        source: _Source,
        facts: GgufFacts,
        *,
        load_time_s: float,
        settings: Mapping[str, Scalar],
        package: tuple[str, str],
    ) -> None:
        super().__init__(source.folder)
        self._decoder = decoder
        warnings = source.warnings
        if source.as_published:
            warnings += _tokenizer_warnings(decoder, self.tokenizer)
        self._info = EngineInfo(
            model_id=source.model_id,
            device="cpu",
            dtype_label=facts.file_type,
            model_size_bytes=decoder.weight_bytes,
            step_weight_bytes=facts.step_bytes,
            kv_bytes_per_token=round(facts.cached_values * CACHE_TYPES[str(settings["cache_type"])]),
            context_length=decoder.context_length or None,
            vocab_size=decoder.vocab_size,
            load_time_s=load_time_s,
            file_size_bytes=source.path.stat().st_size,
            facts={
                **source.facts,
                **settings,
                "weights_format": "gguf",
                "architecture": self.architecture,
                "parameters": decoder.parameters,
            },
            tags={**source.tags, **dict([package])},
            warnings=warnings + peak_warnings(),
            special_tokens=tokens.special_tokens(self.tokenizer),
            pads=False,
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step.

        Nothing is kept between calls. Finished rows are left out of later steps.

        Raises:
            ScenarioError: right padding is requested for rows of unequal lengths: there are no pads to continue from.
        """
        rows = [list(row) for row in request.prompt_ids]
        if request.padding_side == "right" and len({len(row) for row in rows}) > 1:
            raise ScenarioError(
                "llama.cpp computes rows of unequal lengths without pads, so there are none to continue from: use "
                "padding_side=left",
                kind="unsupported",
            )
        suppressed = [token for token in self._eos_ids if request.ignore_eos and token < self._decoder.vocab_size]
        longest = max(map(len, rows)) + request.max_new_tokens
        self._decoder.start(len(rows), longest, len(rows))
        logits = self._decoder.run(rows, [0] * len(rows), range(len(rows)))
        lengths = [len(row) for row in rows]
        active = list(range(len(rows)))
        for remaining in reversed(range(request.max_new_tokens)):
            logits[:, suppressed] = -float("inf")
            chosen = logits.argmax(axis=1).tolist()
            on_step()
            for row, token in zip(active, chosen, strict=True):
                rows[row].append(token)
            if not request.ignore_eos:
                active = [row for row in active if rows[row][-1] not in self._eos_ids]
            if not active or not remaining:
                break
            if request.use_cache:
                positions = [len(rows[row]) - 1 for row in active]
                logits = self._decoder.run([rows[row][-1:] for row in active], positions, active)
            else:
                self._decoder.start(len(rows), longest, len(rows))
                logits = self._decoder.run([rows[row] for row in active], [0] * len(active), active)
        return Generated(tuple(tuple(row[length:]) for row, length in zip(rows, lengths, strict=True)))

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        return torch.cat([part.clone() for part in self._logits_in_parts(ids)])

    def close(self) -> None:
        """Free the model."""
        self._decoder.close()

    def _logits_in_parts(self, ids: Sequence[int]) -> Iterator[torch.Tensor]:
        yield from map(torch.from_numpy, self._decoder.logits(ids))


def _tokenizer_warnings(decoder: LlamaDecoder, tokenizer: Any) -> tuple[str, ...]:
    """Warn if llama.cpp would tokenize a text differently from the tokenizer in use."""
    if decoder.tokenize(_PROBE) == tokens.encode(tokenizer, _PROBE, special_tokens=False):
        return ()
    return (
        "llama.cpp tokenizes differently from transformers for this file, whose tokens are used here: its own tools "
        "would feed the model other tokens",
    )
