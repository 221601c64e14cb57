"""PyTorch engine: a transformers model that generates, eagerly or compiled, and scores in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llmtrack.devices import (
    arithmetic_of,
    empty_cache,
    on_gpu,
    peak_memory_bytes,
    reset_peak_memory,
    resolve_device,
    resolve_dtype,
    stored_label,
    synchronize,
)
from llmtrack.engine import Engine, EngineInfo, Generated, GenerateRequest
from llmtrack.engines.base import WithTokenizer, peak_warnings
from llmtrack.engines.options import NO_COMPILE, ThreadOption, TorchOptions
from llmtrack.engines.rows import MIXED
from llmtrack.engines.torch.decoding import choose_decoding
from llmtrack.engines.torch.eager import EagerDecoding
from llmtrack.engines.torch.fast.compiled import Compiler
from llmtrack.engines.torch.fast.compiled_layers import CompiledLayers
from llmtrack.engines.torch.probes import Batching, agreeing_passes, batching_of
from llmtrack.engines.torch.scoring import Passes, Scorer
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.engines.torch.step import emulation_warning, hidden_bytes, model_size_bytes, step_of, stored_dtypes
from llmtrack.measure.memory import peak_rss_bytes, reset_peak_rss
from llmtrack.models.load import SHARDED, SPREAD, LoadedModel, load_model
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.quantize.recipe import Recipe, find_recipe
from llmtrack.spec.options import chosen
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.tensors import tokens


def load(variant: Variant) -> Engine:
    """Load the model of a variant with PyTorch, on one device or distributed.

    Raises:
        UsageError: the device, dtype or quantization is unavailable.
        MissingDependencyError: the quantization needs a missing package.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: it cannot be sharded.
    """
    options = chosen(TorchOptions, variant.options)
    if options.tensor_parallel > 1:
        from llmtrack.engines.torch.parallel.tensor_parallel import load_sharded

        return load_sharded(variant, options.tensor_parallel, load_shard_of)
    if options.device_map != "none":
        from llmtrack.engines.torch.parallel.device_map import load_spread

        return load_spread(variant, partial(load_whole, placed=SPREAD))
    return load_whole(variant)


def load_shard_of(variant: Variant) -> TorchEngine:
    """Load this rank's shard of a model, in an open group."""
    return load_whole(variant, placed=SHARDED)


def load_whole(variant: Variant, placed: str = "") -> TorchEngine:
    """Load a model onto one device, or placed as `load_model` describes; see `load`."""
    recipe = None if variant.quantization == NONE else find_recipe("torch", variant.quantization)
    device = resolve_device(variant.device)
    dtype, label = resolve_dtype(variant.dtype, device)
    loaded = load_model(variant.model, device=device, dtype=dtype, revision=variant.revision, placed=placed)
    options = chosen(TorchOptions, variant.options)
    facts: dict[str, Scalar] = {**loaded.facts, "threads": options.used_threads}
    if loaded.revision:
        facts["revision"] = loaded.revision
    warnings = loaded.warnings
    passes: Passes | None = None
    batching: Batching | None = None
    probe_cache = loaded.probes
    if recipe is not None:
        passes, batching = _probe_before(recipe, loaded)
        settled = recipe.resolve_options(variant.options)
        facts |= {**settled, **(recipe.run(loaded.model, options=settled) or {})}
        warnings += recipe.warnings
        label = f"{recipe.dtype} weights ({label})"
        probe_cache = (
            probe_cache.extended(recipe.name, recipe.version, settled) if _is_builtin(recipe) else ProbeCache()
        )
    return TorchEngine(
        loaded.model,
        loaded.tokenizer,
        model_id=loaded.model_id,
        dtype_label=label,
        load_time_s=loaded.load_time_s,
        file_size_bytes=loaded.file_size_bytes,
        facts=facts,
        tags=loaded.digests.tags,
        warnings=warnings,
        arithmetic=recipe.arithmetic if recipe else "",
        threads=options.threads,
        compile=options.compile,
        passes=passes,
        batching=batching,
        probe_cache=probe_cache,
    )


def _probe_before(recipe: Recipe, loaded: LoadedModel) -> tuple[Passes, Batching | None]:
    """Probe a float model; return its passes, and which rows may share a batch if the recipe would change the answer."""
    pad_id = tokens.pad_id(loaded.tokenizer, loaded.model.config.get_text_config().vocab_size)
    passes = agreeing_passes(loaded.model, pad_id, loaded.probes)
    if not (recipe.rounds_activations or recipe.depends_on_batch):
        return passes, None
    step, _ = step_of(loaded.model, passes.modules, loaded.probes)
    batching = batching_of(loaded.model, passes, step, pad_id, loaded.probes)
    return passes, replace(batching, scoring=MIXED) if recipe.depends_on_batch else batching


def _is_builtin(recipe: Recipe) -> bool:
    """Return whether a recipe belongs to llmtrack, whose version then identifies it."""
    return recipe.apply.__module__.partition(".")[0] == __name__.partition(".")[0]


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Set PyTorch's intra-op CPU threads within the context; 0 leaves them unchanged."""
    before = torch.get_num_threads()
    if count in (0, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TorchEngine(WithTokenizer):
    """Engine of a transformers model and its tokenizer.

    Args:
        model: a causal language model on its device, in `eval()`.
        dtype_label: label from `resolve_dtype`, used if it matches the loaded parameters.
        threads: intra-op CPU threads, during its own calls only; 0 for PyTorch's default.
        arithmetic: of the matrix products, if not the parameters' dtype.
        compile: `none`, `default` or `max-autotune`; on a GPU it also compiles the layers for scoring.
        compiler: compiles a function; None for `torch.compile`.
        passes: its passes, if probed before quantization.
        batching: which rows may share a batch, if probed before quantization.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_id: str | None = None,
        dtype_label: str = "",
        load_time_s: float | None = None,
        file_size_bytes: int | None = None,
        facts: dict[str, Scalar] | None = None,
        tags: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
        threads: int = 0,
        arithmetic: str = "",
        compile: str = NO_COMPILE,
        compiler: Compiler | None = None,
        passes: Passes | None = None,
        batching: Batching | None = None,
        probe_cache: ProbeCache | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self._threads = threads
        self._cards = sorted({str(weight.device) for weight in model.parameters() if on_gpu(weight.device)})
        vocab_size = int(model.config.get_text_config().vocab_size)
        pad_id = tokens.pad_id(tokenizer, vocab_size)
        probe_cache = probe_cache or ProbeCache()
        self._passes = passes or agreeing_passes(model, pad_id, probe_cache)
        self._device = self._passes.device
        self._eos_ids = tokens.eos_ids(model.generation_config, tokenizer)
        if not self._cards:
            warnings += peak_warnings()
        dtypes = stored_dtypes(model)
        dtype_name = next(iter(dtypes))
        step, step_warnings = step_of(model, self._passes.modules, probe_cache)
        batching = batching or batching_of(model, self._passes, step, pad_id, probe_cache)
        sharing, self._generating = batching.scoring, batching.generating
        self._decoding, decoding_warnings = choose_decoding(
            model,
            compile,
            pad_id=pad_id,
            eos_ids=self._eos_ids,
            first_position=self._passes.first_position,
            forward=self._passes.logits,
            sharing=self._generating,
            step=step,
            compiler=compiler,
        )
        compiled = self._decoding.name != EagerDecoding.name
        compile_scoring = compiled and (self._device.type == "cuda" or compiler is not None)
        around = CompiledLayers(model, compiler).used if compile_scoring else nullcontext
        self._scorer = Scorer(model, self._passes, sharing, around)
        self._info = EngineInfo(
            model_id=model_id or getattr(model.config, "_name_or_path", "") or type(model).__name__,
            device=str(self._device),
            dtype_label=stored_label(dtypes, dtype_label),
            model_size_bytes=model_size_bytes(model),
            step_weight_bytes=step.weight_bytes,
            kv_bytes_per_token=step.cache.per_token,
            kv_windows=step.cache.windows,
            state_bytes=step.cache.constant,
            # A layer's input and output, for all rows of a batch.
            score_bytes_per_token=0 if sharing.reason else 2 * hidden_bytes(model),
            operations=step.operations,
            devices=max(1, len(self._cards)),
            arithmetic=arithmetic or arithmetic_of(dtype_name, self._device.type),
            context_length=self._passes.context_length,
            vocab_size=vocab_size,
            load_time_s=load_time_s,
            file_size_bytes=file_size_bytes,
            facts={**(facts or {}), "compile": compile if compiled else NO_COMPILE, "decode_step": self._decoding.name},
            tags=tags or {},
            warnings=(
                *warnings,
                *step_warnings,
                *decoding_warnings,
                *sharing.warnings,
                *emulation_warning(dtype_name, self._device),
            ),
            special_tokens=tokens.special_tokens(tokenizer),
        )

    def set_threads(self, options: ThreadOption) -> None:
        """Compute the following calls with another number of threads."""
        self._threads = options.threads
        self._info = replace(self._info, facts={**self._info.facts, "threads": options.used_threads})

    @torch.inference_mode()
    def prepare(self, request: GenerateRequest) -> float:
        """Compile for a request if needed; return the seconds that it took.

        Raises:
            ScenarioError: it cannot be compiled.
        """
        self._generating.check(request)
        with threads_set(self._threads):
            return self._decoding.prepare(request)

    @torch.inference_mode()
    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step.

        Raises:
            ScenarioError: the rows have pads, which would change this model's output.
        """
        stamps = Stamps(self._device, on_step)
        self._generating.check(request)
        self._passes.begin()
        with threads_set(self._threads):
            rows = self._decoding.generate(request, stamps)
        eos_ids = frozenset() if request.ignore_eos else self._eos_ids
        return Generated(tuple(tokens.until_eos(row, eos_ids) for row in rows.tolist()), stamps.seconds)

    @torch.inference_mode()
    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Engine.score`."""
        with threads_set(self._threads):
            return self._scorer.score(input_ids, attention_mask, scored)

    @torch.inference_mode()
    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        self._passes.begin()
        row = torch.tensor([list(ids)], device=self._device)
        with threads_set(self._threads):
            return self._passes.logits(row, torch.ones_like(row))[0].float().cpu()

    def synchronize(self) -> None:
        """See `Engine.synchronize`."""
        for card in self._cards:
            synchronize(card)

    def reset_peak_memory(self) -> None:
        """See `Engine.reset_peak_memory`."""
        for card in self._cards:
            reset_peak_memory(card)
        if not self._cards:
            reset_peak_rss()

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the last reset: of the GPU allocator on all cards, or of the resident set on CPU."""
        if self._cards:
            peaks = [peak for card in self._cards if (peak := peak_memory_bytes(card)) is not None]
            return sum(peaks) if peaks else None
        return peak_rss_bytes()

    def close(self) -> None:
        """Free the model."""
        del self.model, self._passes, self._scorer, self._decoding
        empty_cache(self._device)
