"""Sizes of a model's weights, and what one decode step reads and computes, observed by running one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig, PreTrainedModel

from llmtrack.devices import emulates_bfloat16
from llmtrack.engine import CacheGrowth, Operations
from llmtrack.engines.torch.eager import greedy
from llmtrack.engines.torch.module_state import ModuleState
from llmtrack.errors import in_words
from llmtrack.models.probe_cache import ProbeCache

_PROMPTS = (2, 6)
"""Prompt lengths whose caches are compared to find what grows with the tokens."""

_NO_STATE = frozenset(
    {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "cache_position", "token_type_ids"}
)
"""Inputs of a step that are not state."""

_BOUNDED = frozenset({"keys", "values"})
"""Tensors of a cache layer that a window bounds; it may have other state."""

# Names of operators. Gathers read a part of their first argument, grouped products the matrices of their rows' groups.
_GATHERS = frozenset({"index", "index_select", "gather"})
_GROUPED = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
_ADDS_FIRST = frozenset({"addmm", "baddbmm", "addmv", "addbmm"})
"""Operators that add their first argument to the product of the next two."""

_PRODUCTS = frozenset({"linear", "matmul", "mv", "dot"})
_CONVOLUTIONS = frozenset({"convolution", "conv1d", "conv2d"})


@dataclass(frozen=True)
class Step:
    """Data read and operations of a decode step of one row.

    Attributes:
        weight_bytes: bytes of the weights that its operators read; looked-up table rows are not counted.
        cache: bytes of state read, by number of tokens.
        operations: floating-point operations of its matrix products; None if none was seen.
    """

    weight_bytes: int
    cache: CacheGrowth
    operations: Operations | None = None


def step_of(model: Any, modules: ModuleState, probe_cache: ProbeCache) -> tuple[Step, tuple[str, ...]]:
    """Return a model's decode step, cached if possible, and a warning if it is only an upper bound.

    Args:
        model: a transformers model in `eval()` and not run before.
        modules: state kept by its modules; if there is any, the step is always observed anew.
    """
    try:
        observe = partial(observe_step, model, modules)
        return probe_cache.answer("step", model, Step, observe, lambda _: not modules.hold_state), ()
    except Exception as error:
        reason = in_words(error)[:200]
        warning = f"no decode step could be tried ({reason}): its bytes are those of all weights, without a cache"
        return Step(_bytes(model.parameters()), CacheGrowth(0)), (warning,)


@torch.inference_mode()
def observe_step(model: Any, modules: ModuleState | None = None) -> Step:
    """Generate two tokens from prompts of two lengths, and observe the second step.

    Weights count if an operator reads them, however the model selects them (modules that are called or not, slices or
    gathered rows of a stacked tensor): in a mixture of experts, those of one row. State counts as the tensors that
    exist, whichever object holds them; modules that keep some are reset before calls without a cache.

    Args:
        model: a transformers model that can generate, in `eval()` and not run before.
        modules: state kept by its modules; None to find it.

    Raises:
        Exception: whatever the model raises if it cannot generate.
    """
    modules = modules or ModuleState(model)
    short, long = (_observe(model, tokens, modules) for tokens in _PROMPTS)
    modules.reset_unless_cached()
    windows: Counter[int] = Counter()
    growing = constant = 0
    for path, state in long.state.items():
        if state.window is not None:
            windows[state.window] += state.bytes // state.tokens
            continue
        before = short.state[path].bytes if path in short.state else 0
        growth = max(state.bytes - before, 0) // (_PROMPTS[1] - _PROMPTS[0])
        growing += growth
        # The step's own token is already in the cache.
        constant += max(state.bytes - growth * (_PROMPTS[1] + 1), 0)
    per_token = growing + sum(windows.values())
    cache = CacheGrowth(per_token, tuple(sorted(windows.items())), constant)
    return Step(long.weight_bytes, cache, _operations_of_step(model, short.operations, long.operations))


def stored_dtypes(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of weights per storage dtype, the most frequent first: parameters and saved buffers."""
    counts: Counter[str] = Counter()
    saved = model.state_dict(keep_vars=True).values()
    for tensor in {id(value): value for value in saved if isinstance(value, torch.Tensor)}.values():
        # Integer buffers are position tables.
        if isinstance(tensor, torch.nn.Parameter) or tensor.is_floating_point():
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(counts.most_common())


def model_size_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a checkpoint; tables that the code can recreate (masks, rotary angles) do not count."""
    return _bytes(value for value in model.state_dict().values() if isinstance(value, torch.Tensor))


def hidden_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of a token between two layers; 0 if unknown."""
    width = getattr(model.config.get_text_config(), "hidden_size", 0)
    return int(width) * min(parameter.element_size() for parameter in model.parameters())


def emulation_warning(dtype_name: str, device: torch.device) -> tuple[str, ...]:
    """Warn if the CPU emulates a dtype."""
    if dtype_name == "bfloat16" and emulates_bfloat16(device.type):
        return ("this CPU has no bfloat16 instructions: PyTorch emulates them, so the speed is not representative",)
    return ()


def stored_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that store the data of values: for packed or quantized tensors, the inner ones."""
    for value in values:
        if is_traceable_wrapper_subclass(value):
            yield from stored_tensors(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, torch.Tensor):
            yield value


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; shared storage, as of tied weights, counts once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in stored_tensors(tensors)}.values())


def _operations_of_step(model: Any, short: int, long: int) -> Operations | None:
    """Return the operations of a step, from two steps with different numbers of attended tokens."""
    if not short:
        return None
    # The step also attends to its own token.
    per_context = max(long - short, 0) // (_PROMPTS[1] - _PROMPTS[0])
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    per_token = short - per_context * (_PROMPTS[0] + 1)
    return Operations(per_token, per_context, min(per_token, 2 * _local(weight).numel()) if weight is not None else 0)


@dataclass(frozen=True)
class _State:
    """A state tensor: its bytes, and its current and maximum tokens if a window bounds it."""

    bytes: int
    tokens: int = 0
    window: int | None = None


@dataclass(frozen=True)
class _Observation:
    weight_bytes: int
    operations: int
    state: Mapping[tuple[str, ...], _State]


def _observe(model: Any, tokens: int, modules: ModuleState) -> _Observation:
    reads = _Reads(model.state_dict(keep_vars=True).values())
    calls: list[Mapping[str, Any]] = []

    def begin(module: Any, args: Any, inputs: Mapping[str, Any]) -> None:
        calls.append({name: value for name, value in inputs.items() if name not in _NO_STATE})
        if len(calls) == 2:
            reads.__enter__()

    def end(module: Any, args: Any, output: Any) -> None:
        if len(calls) == 2:
            reads.__exit__(None, None, None)

    hooks = (
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end, always_call=True),
    )
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=next(model.parameters()).device)
    config = greedy(model, 2, min_new_tokens=2, use_cache=True, pad_token_id=0)
    try:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    finally:
        for hook in hooks:
            hook.remove()
    state: dict[int, tuple[tuple[str, ...], _State]] = {}
    bounded: set[int] = set()
    names = {module: name for name, module in model.named_modules()}
    of_modules = (((names[module], name), value, None) for (module, name), value in modules.tensors().items())
    for path, tensor, window in (*_tensors(calls[1], ()), *of_modules):
        storage = tensor.untyped_storage().data_ptr()
        # Scalars are included. A bounded layer may hold the end of a tensor that other layers receive whole.
        if not tensor.ndim or not tensor.numel() or (window is None and storage in bounded):
            continue
        if window is not None:
            bounded.add(storage)
        length = tensor.shape[-2] if window is not None else 0
        state.setdefault(tensor.data_ptr(), (path, _State(tensor.nbytes, length, window)))
    return _Observation(reads.bytes, reads.operations, dict(state.values()))


def _tensors(
    value: Any, path: tuple[str, ...], window: int | None = None
) -> Iterator[tuple[tuple[str, ...], torch.Tensor, int | None]]:
    """Yield the tensors within an object, each with its path and the window of its cache layer."""
    if isinstance(value, torch.Tensor):
        yield path, value, window
        return
    if isinstance(value, Mapping):
        items: Sequence[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif isinstance(value, (type, torch.nn.Module, PretrainedConfig)) or not hasattr(value, "__dict__"):
        return
    else:
        items = list(vars(value).items())
        if getattr(value, "is_sliding", False) is True:
            window = int(value.sliding_window)
    for name, item in items:
        yield from _tensors(item, (*path, str(name)), window if name in _BOUNDED else None)


class _Reads(TorchDispatchMode):
    """Counts the weight bytes read and the operations computed within the context."""

    def __init__(self, weights: Any) -> None:
        super().__init__()
        storages = [weight.untyped_storage() for weight in stored_tensors(weights)]
        self._sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self._parts: dict[int, dict[tuple[int, ...], int]] = {}
        self.operations = 0

    @property
    def bytes(self) -> int:
        """Distinct bytes read."""
        return sum(min(sum(parts.values()), self._sizes[at]) for at, parts in self._parts.items())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = list(stored_tensors(tree_leaves(result)))
        inputs = list(stored_tensors(tree_leaves((args, kwargs))))
        name = func.overloadpacket.__name__
        self.operations += operations(
            name, args, [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        )
        # An expert without tokens may be called with no rows.
        if name != "embedding" and all(output.numel() for output in outputs):
            views = {output.untyped_storage().data_ptr() for output in outputs}
            for tensor in inputs:
                storage = tensor.untyped_storage().data_ptr()
                if storage in self._sizes and storage not in views:
                    self._read(storage, tensor, name, inputs[0], outputs)
        return result

    def _read(
        self, storage: int, tensor: torch.Tensor, name: str, first: torch.Tensor, outputs: list[torch.Tensor]
    ) -> None:
        parts = self._parts.setdefault(storage, {})
        if name in _GATHERS and tensor is first:
            parts[(-1, len(parts))] = outputs[0].numel() * tensor.element_size()
            return
        # Expanded tensors are stored once.
        stored = math.prod(
            size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0
        )
        if name in _GROUPED and tensor is not first and tensor.ndim == 3:
            stored = stored * min(first.shape[0], tensor.shape[0]) // tensor.shape[0]
        parts[(int(tensor.storage_offset()), stored)] = stored * tensor.element_size()


def operations(name: str, args: tuple[Any, ...], outputs: list[torch.Tensor]) -> int:
    """Return the floating-point operations of a call; 0 unless it is a matrix product, convolution or attention.

    A product of (..., k) with a matrix takes 2 k per output element, two per multiply-add; an outer product (k = 1)
    sums nothing and is not counted. Attention takes one product of queries with keys and one of weights with values,
    masked or not.

    Args:
        name: operator name without namespace and overload.
        args: its arguments; of distributed tensors, the local part counts.
        outputs: the returned tensors.
    """
    inputs = [_local(value) for value in args if isinstance(value, torch.Tensor)]
    outputs = [_local(output) for output in outputs]
    if not outputs or not outputs[0].numel():
        return 0
    if "scaled_dot_product" in name and len(inputs) >= 3:
        query, key, value = inputs[:3]
        return 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    if name == "einsum":
        return _einsum(args, outputs[0])
    if name in _CONVOLUTIONS:
        return 2 * outputs[0].numel() * math.prod(inputs[1].shape[1:])
    if name in _ADDS_FIRST:
        inputs = inputs[1:]
    elif name not in _PRODUCTS and not name.endswith("mm") and "_mm" not in name:
        return 0
    inner = inputs[0].shape[-1] if inputs and inputs[0].ndim else 1
    return 2 * outputs[0].numel() * inner if inner > 1 else 0


def _einsum(args: tuple[Any, ...], output: torch.Tensor) -> int:
    """Return the operations of an einsum of two tensors."""
    terms, _, target = str(args[0]).replace(" ", "").partition("->")
    tensors = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else args[1:]
    names = terms.split(",")
    if len(names) != 2 or len(tensors) != 2 or "." in terms:
        return 0
    sizes = {
        name: size
        for term, tensor in zip(names, tensors, strict=True)
        for name, size in zip(term, tensor.shape, strict=True)
    }
    summed = math.prod(size for name, size in sizes.items() if name not in target)
    return 2 * output.numel() * summed if summed > 1 else 0


def _local(value: Any) -> Any:
    """Return the local part of a distributed tensor; anything else unchanged."""
    return getattr(value, "_local_tensor", value)
