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


def step_of(model: Any, modules: ModuleState, notes: ProbeCache) -> tuple[Step, tuple[str, ...]]:
    """Return the bytes that a decode step reads, and a warning if it is only an upper bound.

    Args:
        model: a transformers model in `eval()` and not run before.
        modules: state kept by its modules; if there is any, the step is always observed anew.
        notes: cached answers of its probes.
    """
    try:
        look = partial(observe_step, model, modules)
        return notes.answer("step", model, Step, look, lambda _: not modules.hold_state), ()
    except Exception as error:
        reason = in_words(error)[:200]
        warning = f"no decode step could be tried ({reason}): its bytes are those of all weights, without a cache"
        return Step(_bytes(model.parameters()), CacheGrowth(0)), (warning,)


@torch.inference_mode()
def observe_step(model: Any, modules: ModuleState) -> Step:
    """Generate two tokens from prompts of two lengths, and observe the second step.

    Weights count if an operator reads them, however the model selects them (modules that are called or not, slices or
    gathered rows of a stacked tensor): in a mixture of experts, those of one row. State counts as the tensors that
    exist, whichever object holds them; modules that keep some are reset before calls without a cache.

    Args:
        model: a transformers model that can generate, in `eval()` and not run before.
        modules: state kept by its modules.

    Raises:
        Exception: whatever the model raises if it cannot generate.
    """
    short, long = (_watch(model, tokens, modules) for tokens in _PROMPTS)
    modules.forget_unless_cached()
    windows: Counter[int] = Counter()
    growing = constant = 0
    for path, held in long.state.items():
        if held.window is not None:
            windows[held.window] += held.bytes // held.tokens
            continue
        before = short.state[path].bytes if path in short.state else 0
        grown = max(held.bytes - before, 0) // (_PROMPTS[1] - _PROMPTS[0])
        growing += grown
        # The step's own token is already in the cache.
        constant += max(held.bytes - grown * (_PROMPTS[1] + 1), 0)
    per_token = growing + sum(windows.values())
    cache = CacheGrowth(per_token, tuple(sorted(windows.items())), constant)
    return Step(long.weight_bytes, cache, _operations(model, short.operations, long.operations))


def stored_dtypes(model: torch.nn.Module) -> dict[str, int]:
    """Return the number of weights per storage dtype, the most frequent first: parameters and saved buffers."""
    counts: Counter[str] = Counter()
    saved = model.state_dict(keep_vars=True).values()
    for tensor in {id(each): each for each in saved if isinstance(each, torch.Tensor)}.values():
        # Integer buffers are position tables.
        if isinstance(tensor, torch.nn.Parameter) or tensor.is_floating_point():
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(counts.most_common())


def model_size_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a checkpoint; tables that the code can recreate (masks, rotary angles) do not count."""
    return _bytes(each for each in model.state_dict().values() if isinstance(each, torch.Tensor))


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


def _operations(model: Any, short: int, long: int) -> Operations | None:
    """Return the operations of a step, from two steps with different numbers of attended tokens."""
    if not short:
        return None
    # The step also attends to its own token.
    per_context = max(long - short, 0) // (_PROMPTS[1] - _PROMPTS[0])
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    whole = short - per_context * (_PROMPTS[0] + 1)
    return Operations(whole, per_context, min(whole, 2 * local(weight).numel()) if weight is not None else 0)


@dataclass(frozen=True)
class _Held:
    """A state tensor: its bytes, and its current and maximum tokens if a window bounds it."""

    bytes: int
    tokens: int = 0
    window: int | None = None


@dataclass(frozen=True)
class _Watched:
    weight_bytes: int
    operations: int
    state: Mapping[tuple[str, ...], _Held]


def _watch(model: Any, tokens: int, modules: ModuleState) -> _Watched:
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
    state: dict[int, tuple[tuple[str, ...], _Held]] = {}
    bounded: set[int] = set()
    names = {module: name for name, module in model.named_modules()}
    held_by_modules = (((names[at], key), value, None) for (at, key), value in modules.found().items())
    for path, tensor, window in (*_tensors(calls[1], ()), *held_by_modules):
        storage = tensor.untyped_storage().data_ptr()
        # Scalars are included. A bounded layer may hold the end of a tensor that other layers receive whole.
        if not tensor.ndim or not tensor.numel() or (window is None and storage in bounded):
            continue
        if window is not None:
            bounded.add(storage)
        held = tensor.shape[-2] if window is not None else 0
        state.setdefault(tensor.data_ptr(), (path, _Held(tensor.nbytes, held, window)))
    return _Watched(reads.bytes, reads.operations, dict(state.values()))


_Found = tuple[tuple[str, ...], torch.Tensor, "int | None"]


def _tensors(value: Any, path: tuple[str, ...], window: int | None = None) -> Iterator[_Found]:
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
    for name, each in items:
        yield from _tensors(each, (*path, str(name)), window if name in _BOUNDED else None)


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
        made = list(stored_tensors(tree_leaves(result)))
        given = list(stored_tensors(tree_leaves((args, kwargs))))
        name = func.overloadpacket.__name__
        self.operations += operations(
            name, args, [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        )
        # An expert without tokens may be called with no rows.
        if name != "embedding" and all(each.numel() for each in made):
            views = {each.untyped_storage().data_ptr() for each in made}
            for tensor in given:
                at = tensor.untyped_storage().data_ptr()
                if at in self._sizes and at not in views:
                    self._read(at, tensor, name, given[0], made)
        return result

    def _read(self, at: int, tensor: torch.Tensor, name: str, first: torch.Tensor, made: list[torch.Tensor]) -> None:
        parts = self._parts.setdefault(at, {})
        if name in _GATHERS and tensor is first:
            parts[(-1, len(parts))] = made[0].numel() * tensor.element_size()
            return
        # Expanded tensors are stored once.
        stored = math.prod(
            size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 0
        )
        if name in _GROUPED and tensor is not first and tensor.ndim == 3:
            stored = stored * min(first.shape[0], tensor.shape[0]) // tensor.shape[0]
        parts[(int(tensor.storage_offset()), stored)] = stored * tensor.element_size()


def local(value: Any) -> Any:
    """Return the local part of a distributed tensor; anything else unchanged."""
    return getattr(value, "_local_tensor", value)


def operations(name: str, args: tuple[Any, ...], made: list[torch.Tensor]) -> int:
    """Return the floating-point operations of a call; 0 unless it is a matrix product, convolution or attention.

    A product of (..., k) with a matrix takes 2 k per output element; an outer product (k = 1) sums nothing and is not
    counted. Attention takes one product of queries with keys and one of weights with values, masked or not.

    Args:
        name: operator name without namespace and overload.
        args: its arguments; of distributed tensors, the local part counts.
        made: the returned tensors.
    """
    given = [local(each) for each in args if isinstance(each, torch.Tensor)]
    made = [local(each) for each in made]
    if not made or not made[0].numel():
        return 0
    if "scaled_dot_product" in name and len(given) >= 3:
        query, key, value = given[:3]
        return 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    if name == "einsum":
        return _einsum(args, made[0])
    if name in _CONVOLUTIONS:
        return 2 * made[0].numel() * math.prod(given[1].shape[1:])
    if name in _ADDS_FIRST:
        given = given[1:]
    elif name not in _PRODUCTS and not name.endswith("mm") and "_mm" not in name:
        return 0
    inner = given[0].shape[-1] if given and given[0].ndim else 1
    return 2 * made[0].numel() * inner if inner > 1 else 0


def _einsum(args: tuple[Any, ...], made: torch.Tensor) -> int:
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
    return 2 * made.numel() * summed if summed > 1 else 0
