"""Measure what one decode step reads and computes by running one: the weights its operators touch, and its state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig

from llmtrack.engine import CacheGrowth, Operations
from llmtrack.engines.torch.eager import greedy
from llmtrack.engines.torch.module_state import ModuleState
from llmtrack.engines.torch.operations import local, operations

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


def stored_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that store the data of values: for packed or quantized tensors, the inner ones."""
    for value in values:
        if is_traceable_wrapper_subclass(value):
            yield from stored_tensors(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, torch.Tensor):
            yield value


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
