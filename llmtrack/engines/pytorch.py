"""The PyTorch engine: a transformers model that generates, eagerly or compiled, and scores in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llmtrack.devices import arithmetic_of, resolve_device, resolve_dtype, stored_label
from llmtrack.engine import CacheGrowth, Engine, EngineInfo, Generated, GenerateRequest, Tokenized
from llmtrack.engines.compiled import Compiler
from llmtrack.engines.decoding import NO_COMPILE, choose_decoding
from llmtrack.engines.eager import EagerDecoding, greedy
from llmtrack.engines.forgetting import rescaling_ropes, reset_rope
from llmtrack.engines.layers import CompiledLayers
from llmtrack.engines.options import TorchOptions
from llmtrack.engines.rows import sharing_of, sharing_of_generation
from llmtrack.engines.stamps import Stamps
from llmtrack.engines.step import Step, observe_step, stored_tensors
from llmtrack.errors import in_words
from llmtrack.measure.memory import peak_rss_bytes, reset_peak_rss
from llmtrack.models.context import context_length, first_position
from llmtrack.models.decoder import forward_inputs, positions_of
from llmtrack.models.from_folder import SHARDED, SPREAD
from llmtrack.models.load import load_model
from llmtrack.options import chosen
from llmtrack.quantize.recipe import NONE, find_recipe
from llmtrack.scenario import Scalar, Variant
from llmtrack.tensors import tokens
from llmtrack.tensors.likelihood import predicted, sum_nll
from llmtrack.tensors.padding import pad_rows


def load(variant: Variant) -> Engine:
    """Load the model of a variant with PyTorch, on one device or shared out among several.

    Raises:
        UsageError: the device, dtype or quantization is not there.
        MissingDependencyError: the quantization needs a package that is not installed.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: it cannot be shared out.
    """
    told = chosen(TorchOptions, variant.options)
    if told.tensor_parallel > 1:
        from llmtrack.engines.ranks import load_sharded

        return load_sharded(variant, told.tensor_parallel, load_share_of)
    if told.device_map != "none":
        from llmtrack.engines.spread import load_spread

        return load_spread(variant, partial(load_whole, placed=SPREAD))
    return load_whole(variant)


def load_share_of(variant: Variant) -> TorchEngine:
    """Load the share of a model that is this rank's, in a group of ranks that is open."""
    return load_whole(variant, placed=SHARDED)


def load_whole(variant: Variant, placed: str = "") -> TorchEngine:
    """Load all of a model onto one device, or placed as `load_model` says; see `load`."""
    recipe = None if variant.quantization == NONE else find_recipe("torch", variant.quantization)
    device = resolve_device(variant.device)
    dtype, label = resolve_dtype(variant.dtype, device)
    loaded = load_model(variant.model, device=device, dtype=dtype, revision=variant.revision, placed=placed)
    told = chosen(TorchOptions, variant.options)
    facts: dict[str, Scalar] = {**loaded.facts, "threads": told.threads or torch.get_num_threads()}
    if loaded.revision:
        facts["revision"] = loaded.revision
    if recipe is not None:
        facts |= recipe.apply(loaded.model) or {}
        label = f"{recipe.dtype} weights ({label})"
    return TorchEngine(
        loaded.model,
        loaded.tokenizer,
        model_id=loaded.model_id,
        dtype_label=label,
        load_time_s=loaded.load_time_s,
        file_size_bytes=loaded.file_size_bytes,
        facts=facts,
        tags=loaded.digests.tags,
        warnings=loaded.warnings,
        arithmetic=recipe.arithmetic if recipe else "",
        threads=told.threads,
        compile=told.compile,
    )


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Let PyTorch compute an operation on the CPU with so many threads, and with as many as before afterwards.

    Args:
        count: threads; 0: as they are.
    """
    before = torch.get_num_threads()
    if count in (0, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TorchEngine:
    """A transformers model and its tokenizer as an engine.

    Args:
        model: a causal language model, on its device, in `eval()`.
        tokenizer: its tokenizer.
        model_id: what to call it in tracked runs.
        dtype_label: label of the dtype as `resolve_dtype` gave it; used where it agrees with the loaded
            parameters, which have the last word.
        load_time_s: seconds that loading took.
        file_size_bytes: bytes of the weights' files.
        facts: params to track.
        tags: provenance to track.
        warnings: findings in words.
        threads: threads that compute one operation on the CPU, in its own calls only; 0: as many as PyTorch takes.
        arithmetic: what matrix products are computed in, where it is not the dtype of the parameters.
        compile: whether and how decoding is compiled: `none`, `default` or `max-autotune`; on a GPU, where it is, so are the
            layers of scoring.
        compiler: compiles a function; None: `torch.compile`.
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
    ) -> None:
        self.model: Any = model
        self._threads = threads
        self.tokenizer = tokenizer
        self._device = next(model.parameters()).device
        self._cards = sorted({str(each.device) for each in model.parameters() if each.device.type == "cuda"})
        self._first_position = first_position(model)
        if self._first_position:
            model.register_forward_pre_hook(partial(_own_positions, self._first_position), with_kwargs=True)
        self._stateful: list[Any] = [
            module for module in model.modules() if hasattr(module, "recurrent_states")
        ]
        self._ropes = rescaling_ropes(model)
        self._pad_id = tokens.pad_id(tokenizer, int(model.config.get_text_config().vocab_size))
        self._eos_ids = tokens.eos_ids(model.generation_config, tokenizer)
        self._head: torch.nn.Module | None = None
        self._head_checked = False
        peak_is_resettable = self._device.type == "cuda" or reset_peak_rss()
        if not peak_is_resettable:
            warnings += ("peak memory is that of the whole process: this system cannot reset it",)
        dtype_name = next(iter(stored_dtypes(model)))
        step, unseen = _step_of(model)
        self._sharing = sharing_of(model, self._logits, recurrent=step.cache.constant > 0)
        vocab_size = int(model.config.get_text_config().vocab_size)
        self._generating = sharing_of_generation(self._sharing, self._step_logits, vocab_size)
        self._decoding, less_compiled = choose_decoding(
            model,
            compile,
            pad_id=self._pad_id,
            eos_ids=self._eos_ids,
            first_position=self._first_position,
            forward=self._logits,
            sharing=self._generating,
            step=step,
            compiler=compiler,
        )
        compiled = self._decoding.name != EagerDecoding.name
        scored_compiled = compiled and (self._device.type == "cuda" or compiler is not None)
        self._scoring = CompiledLayers(model, compiler).used if scored_compiled else nullcontext
        self._info = EngineInfo(
            model_id=model_id or getattr(model.config, "_name_or_path", "") or type(model).__name__,
            device=str(self._device),
            dtype_label=stored_label(stored_dtypes(model), dtype_label),
            model_size_bytes=_model_size_bytes(model),
            step_weight_bytes=step.weight_bytes,
            kv_bytes_per_token=step.cache.per_token,
            kv_windows=step.cache.windows,
            state_bytes=step.cache.constant,
            # A layer's input and output, of all rows where they share a batch.
            score_bytes_per_token=0 if self._sharing.reason else 2 * _hidden_bytes(model),
            operations=step.operations,
            devices=max(1, len(self._cards)),
            arithmetic=arithmetic or arithmetic_of(dtype_name, self._device.type),
            context_length=_context_of(model, self._first_position),
            vocab_size=int(model.config.get_text_config().vocab_size),
            load_time_s=load_time_s,
            file_size_bytes=file_size_bytes,
            facts={
                **(facts or {}),
                "compile": compile if compiled else NO_COMPILE,
                "decode_step": self._decoding.name,
            },
            tags=tags or {},
            warnings=warnings
            + unseen
            + less_compiled
            + self._sharing.warnings
            + _emulation_warning(dtype_name, self._device),
            special_tokens=tokens.special_tokens(tokenizer),
        )

    @property
    def info(self) -> EngineInfo:
        """Facts about what is loaded."""
        return self._info

    def known_as(
        self,
        model_id: str,
        *,
        facts: Mapping[str, Scalar],
        tags: Mapping[str, str],
        warnings: tuple[str, ...],
    ) -> TorchEngine:
        """Return this engine under the name that was asked for, where what was loaded is a folder made of it."""
        info = self._info
        self._info = replace(
            info,
            model_id=model_id,
            facts={**info.facts, **facts},
            tags={**info.tags, **tags},
            warnings=(*warnings, *info.warnings),
        )
        return self

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text that is to go on; see `Engine.encode`."""
        return tokens.encode(self.tokenizer, text, special_tokens)

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """Return the same token ids, and the part of the text that each covers."""
        return tokens.tokenize(self.tokenizer, text, special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return tokens.decode(self.tokenizer, ids)

    @torch.inference_mode()
    def prepare(self, request: GenerateRequest) -> float:
        """Compile what a request needs, if that has not been done; return the seconds that it took.

        Raises:
            ScenarioError: it cannot be compiled.
        """
        self._check(request)
        with threads_set(self._threads):
            return self._decoding.prepare(request)

    @torch.inference_mode()
    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step.

        Raises:
            ScenarioError: the rows have pads, which would change what this model says.
        """
        stamps = Stamps(self._device, on_step)
        self._check(request)
        reset_rope(self._ropes)
        with threads_set(self._threads):
            rows = self._decoding.generate(request, stamps)
        eos_ids = frozenset() if request.ignore_eos else self._eos_ids
        return Generated(tuple(tokens.until_eos(row, eos_ids) for row in rows.tolist()), stamps.seconds)

    def _check(self, request: GenerateRequest) -> None:
        lengths = [len(row) for row in request.prompt_ids]
        self._generating.check(lengths, request.padded_length, request.max_new_tokens)

    @torch.inference_mode()
    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score next-token prediction over padded rows; see `Engine.score`.

        Rows that may not share a batch are computed one class after the other, each padded anew.
        """
        real = attention_mask.bool()
        counts = predicted(attention_mask, scored).sum(dim=1)
        # The last token of a row is nobody's context.
        classes = self._sharing.classes((real.sum(dim=1) - 1).tolist())
        if not self._sharing.reason or (len(classes) == 1 and real.all()):
            return self._sums(input_ids, attention_mask, scored), counts
        sums = torch.zeros(len(counts), dtype=torch.float64)
        flags = torch.ones_like(real) if scored is None else scored
        for rows in classes:
            ids, mask = pad_rows([input_ids[row][real[row]].tolist() for row in rows], 0, "right")
            wanted, _ = pad_rows([flags[row][real[row]].tolist() for row in rows], 0, "right")
            sums[rows] = self._sums(ids, mask, wanted.bool())
        return sums, counts

    def _sums(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the summed negative log-likelihood of rows that share a batch."""
        valid = predicted(attention_mask, scored).to(self._device)
        if not valid.any():
            return torch.zeros(len(valid), dtype=torch.float64)
        input_ids, attention_mask = input_ids.to(self._device), attention_mask.to(self._device)
        reset_rope(self._ropes)
        # The last column is nobody's context, so it is not read.
        with threads_set(self._threads):
            hidden, head = self._hidden_states(input_ids[:, :-1], attention_mask[:, :-1])
            # Of a model that is spread over several cards, its end may lie on another one than its beginning.
            targets, valid = input_ids[:, 1:].to(hidden.device), valid.to(hidden.device)
            return sum_nll(hidden, targets, valid, head, self._info.vocab_size).cpu()

    @torch.inference_mode()
    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after each token of one row; see `Engine.next_token_logits`."""
        reset_rope(self._ropes)
        row = torch.tensor([list(ids)], device=self._device)
        with threads_set(self._threads):
            return self._forward(self.model, row, torch.ones_like(row)).logits[0].float().cpu()

    def synchronize(self) -> None:
        """Wait until the device has finished all work given to it."""
        for card in self._cards:
            torch.cuda.synchronize(card)

    def reset_peak_memory(self) -> None:
        """Begin a new peak-memory reading."""
        for card in self._cards:
            torch.cuda.reset_peak_memory_stats(card)
        if not self._cards:
            reset_peak_rss()

    def peak_memory_bytes(self) -> int | None:
        """Return the peak since the last reset: of the CUDA allocator, on all cards, or of the resident set on CPU."""
        if self._cards:
            return sum(map(torch.cuda.max_memory_allocated, self._cards))
        return peak_rss_bytes()

    def close(self) -> None:
        """Free the model."""
        del self.model, self._head, self._ropes, self._stateful, self._decoding, self._scoring
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _hidden_states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        """Return the last hidden states and the head that turns them into logits.

        A batch's logits are large (vocabulary times tokens), so the head is applied to a chunk of tokens at
        a time. Models that do more to the logits than one linear layer (soft-capping, scaling) are found by
        a look at a short pass; their logits are computed whole, and the head is the identity.
        """
        if not self._head_checked:
            self._head = self._plain_head(input_ids, attention_mask)
            self._head_checked = True
        with self._scoring():
            if self._head is None:
                return self._forward(self.model, input_ids, attention_mask).logits, lambda logits: logits
            return self._forward(self.model.base_model, input_ids, attention_mask)[0], self._head

    def _plain_head(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.nn.Module | None:
        """Return the head if all that the model does after its body is to apply it."""
        head, body = self.model.get_output_embeddings(), self.model.base_model
        if head is None or body is self.model:
            return None
        seen: dict[str, torch.Tensor] = {}
        hooks = [
            body.register_forward_hook(lambda module, inputs, output: seen.update(hidden=output[0])),
            head.register_forward_hook(
                lambda module, inputs, output: seen.update(given=inputs[0], made=output)
            ),
        ]
        longest = int(attention_mask.sum(dim=1).argmax())
        probe = input_ids[longest, attention_mask[longest].bool()][None, :8]
        try:
            logits = self._forward(self.model, probe, torch.ones_like(probe)).logits
        finally:
            for hook in hooks:
                hook.remove()
        # Within one pass the numbers are equal to the last bit, so that a mild soft-cap shows, too.
        plain = (
            len(seen) == 3
            and torch.equal(seen["hidden"], seen["given"])
            and torch.equal(seen["made"].to(logits), logits)
        )
        return head if plain else None

    def _logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._forward(
                self.model, input_ids.to(self._device), attention_mask.to(self._device)
            ).logits

    @torch.inference_mode()
    def _step_logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the logits of two generated tokens, each (rows, vocabulary); none where it cannot generate."""
        config = greedy(self.model, 2, min_new_tokens=2, pad_token_id=self._pad_id)
        config.output_logits = config.return_dict_in_generate = True
        try:
            output: Any = self.model.generate(
                input_ids=input_ids.to(self._device),
                attention_mask=attention_mask.to(self._device),
                generation_config=config,
            )
        except Exception:  # a model that cannot generate says so when it is asked to
            return ()
        # `generate` shows them in float32, whatever they were computed in: their rounding is that of the model.
        return tuple(each.to(self.model.dtype) for each in output.logits)

    def _forward(self, module: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        for stateful in self._stateful:  # that of the rows before, and of as many
            stateful.recurrent_states = None
        return module(**forward_inputs(module, input_ids, attention_mask, self._first_position))


def _own_positions(
    first: int, module: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Number the tokens of a call as the model does, from its own first position on.

    transformers 4.57's `generate` numbers them from 0 for every model that takes positions.
    """
    ids, mask = named.get("input_ids"), named.get("attention_mask")
    if named.get("position_ids") is not None and ids is not None and mask is not None and mask.ndim == 2:
        named = {**named, "position_ids": positions_of(mask, first)[:, -ids.shape[1] :]}
    return given, named


def _context_of(model: PreTrainedModel, first: int) -> int | None:
    positions = context_length(model.config.get_text_config().to_dict())
    return None if positions is None else positions - first


def stored_dtypes(model: torch.nn.Module) -> dict[str, int]:
    """Return how many weights are stored as which dtype, the most frequent first: parameters and what is saved with them."""
    counts: Counter[str] = Counter()
    saved = model.state_dict(keep_vars=True).values()
    for tensor in {id(each): each for each in saved if isinstance(each, torch.Tensor)}.values():
        # Numbers that are no parameters are tables of positions.
        if isinstance(tensor, torch.nn.Parameter) or tensor.is_floating_point():
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(counts.most_common())


def _weight_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors; those that share memory, as tied weights do, count once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in stored_tensors(tensors)}.values())


def _hidden_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of a token between two layers; 0 if the config does not tell."""
    width = getattr(model.config.get_text_config(), "hidden_size", 0)
    return int(width) * min(parameter.element_size() for parameter in model.parameters())


def _model_size_bytes(model: torch.nn.Module) -> int:
    """Bytes of what a checkpoint holds: tables that the code can make again (masks, rotary angles) are no weights."""
    return _weight_bytes(each for each in model.state_dict().values() if isinstance(each, torch.Tensor))


def _step_of(model: Any) -> tuple[Step, tuple[str, ...]]:
    """Return what a decode step reads, and a warning where none could be run and it is an upper bound."""
    try:
        return observe_step(model), ()
    except Exception as error:
        reason = in_words(error)[:200]
        warning = (
            f"no decode step could be tried ({reason}): its bytes are those of all weights, without a cache"
        )
        return Step(_weight_bytes(model.parameters()), CacheGrowth(0)), (warning,)


def _emulation_warning(dtype_name: str, device: torch.device) -> tuple[str, ...]:
    if dtype_name == "bfloat16" and device.type == "cpu" and not _cpu_has_bfloat16():
        return (
            "this CPU has no bfloat16 instructions: PyTorch converts on the fly, so speed is not that of bfloat16",
        )
    return ()


def _cpu_has_bfloat16() -> bool:
    capability = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(capability and capability()) or torch.backends.cpu.get_cpu_capability() == "SVE256"
