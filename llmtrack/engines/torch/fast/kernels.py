"""Triton kernels of a decode step: attention per key head, and a matrix-vector product plus a vector.

Triton comes with PyTorch for GPUs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_GROUP = 16
"""Minimum rows of a matrix product; groups of query heads are padded to it."""

_ROWS, _INNER, _WARPS = 2, 2048, 2
"""Rows per program, columns per iteration, and warps: about the best of 60 choices for each of five matrices."""


def attend(
    heads: int,
    scale: float,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    fused: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Return the output of each query head, (rows, 1, heads x width), and store the new keys and values in the cache.

    Rotating, storing and attending separately takes half a dozen kernels per layer of a few microseconds each: a tenth
    of a step of a model with a billion weights. One program reads all tokens of a key head block by block; in long
    caches, several programs would be faster.

    Args:
        heads: number of query heads.
        scale: of the scores.
        norms: (width,) weights of the query and key norms before rotation, and their epsilon; None without norms.
        fused: (rows, 1, (heads + 2 x key heads) x width), queries, keys and values of one token.
        cos: (rows, 1, 1, width).
        sin: (rows, 1, 1, width).
        slots: (1,), cache slot of the token; later slots are not read.
        mask: (rows, 1, 1, length) booleans.
        keys: (rows, key heads, length, width).
        values: likewise.
    """
    rows, key_heads, length, width = keys.shape
    output = torch.empty((rows, 1, heads * width), dtype=fused.dtype, device=fused.device)
    query_norm, key_norm, epsilon = norms or (fused, fused, 0.0)
    _attend_kernel[(rows, key_heads)](
        fused,
        query_norm,
        key_norm,
        cos,
        sin,
        slots,
        mask,
        keys,
        values,
        output,
        length,
        mask.stride(0),
        scale=scale,
        normed=norms is not None,
        epsilon=epsilon,
        key_heads=key_heads,
        group=heads // key_heads,
        padded=_GROUP,
        width=width,
        block=64,
    )
    return output


def added(base: torch.Tensor, row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `base` + `weight` `row`, summed in float32: most of a decode step of one prompt.

    PyTorch's compiler can generate it, too, but its speed depends on the tuning: for an 8 MiB matrix it took 5 to 12 us
    on an H100, where this takes 5.

    Args:
        base: (1, 1, outputs).
        row: (1, 1, inputs), contiguous.
        weight: (outputs, inputs), contiguous.
    """
    outputs, inputs = weight.shape
    result = torch.empty_like(base)
    _added_kernel[(triton.cdiv(outputs, _ROWS),)](
        base, row, weight, result, outputs, inputs, rows=_ROWS, inner=_INNER, num_warps=_WARPS
    )
    return result


@triton.jit
def _attend_kernel(  # type: ignore[no-untyped-def] # Triton reads the names itself
    fused,
    query_norm,
    key_norm,
    cos,
    sin,
    slots,
    mask,
    keys,
    values,
    output,
    length,
    mask_stride,
    scale: tl.constexpr,
    normed: tl.constexpr,
    epsilon: tl.constexpr,
    key_heads: tl.constexpr,
    group: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    dtype = keys.dtype.element_ty
    at = tl.arange(0, width)
    half = width // 2
    other = (at + half) % width
    turn = tl.load(cos + row * width + at).to(tl.float32)
    cross = tl.load(sin + row * width + at).to(tl.float32) * tl.where(at < half, -1.0, 1.0)
    slot = tl.load(slots)
    start = fused + row * (group + 2) * key_heads * width

    # Store the new key and value, and attend to them first.
    key_at = start + (key_heads * group + head) * width
    zero = tl.zeros((1, 1), tl.int32)
    new_key = _rotated(key_at + zero, zero == 0, at, other, turn, cross, key_norm, normed, epsilon, dtype)
    new_key = tl.reshape(new_key, (width,))
    new_value = tl.load(key_at + key_heads * width + at)
    cache = (row * key_heads + head) * length * width
    tl.store(keys + cache + slot * width + at, new_key)
    tl.store(values + cache + slot * width + at, new_value)

    member = tl.arange(0, padded)
    real = (member < group)[:, None]
    query_at = start + (head * group + member)[:, None] * width
    query = _rotated(query_at, real, at, other, turn, cross, query_norm, normed, epsilon, dtype)

    # Online softmax: the highest score so far, and sums relative to it.
    top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None], 1) * scale
    total = tl.full((padded,), 1.0, tl.float32)
    result = tl.zeros((padded, width), tl.float32) + new_value.to(tl.float32)[None]
    for begin in range(0, slot, block):
        token = begin + tl.arange(0, block)
        cached = token < slot
        visible = cached & (tl.load(mask + row * mask_stride + token, mask=cached, other=0) != 0)
        key = tl.load(keys + cache + token[None] * width + at[:, None], mask=cached[None], other=0.0)
        score = tl.where(visible[None], tl.dot(query, key) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        before = tl.exp(top - higher)
        value = tl.load(values + cache + token[:, None] * width + at[None], mask=cached[:, None], other=0.0)
        result = result * before[:, None] + tl.dot(weight.to(dtype), value)
        total = total * before + tl.sum(weight, 1)
        top = higher
    output_at = output + (row * key_heads * group + head * group + member)[:, None] * width + at[None]
    tl.store(output_at, (result / total[:, None]).to(dtype), mask=real)


@triton.jit
def _rotated(  # type: ignore[no-untyped-def]
    offsets, real, at, other, turn, cross, norm, normed: tl.constexpr, epsilon: tl.constexpr, dtype: tl.constexpr
):
    """Return the (heads, width) states at (heads, 1) offsets, normed if needed, and rotated."""
    states = tl.load(offsets + at[None], mask=real, other=0.0).to(tl.float32)
    twins = tl.load(offsets + other[None], mask=real, other=0.0).to(tl.float32)
    if normed:
        factor = tl.rsqrt(tl.sum(states * states, 1)[:, None] / at.shape[0] + epsilon)
        states = ((states * factor).to(dtype) * tl.load(norm + at)[None]).to(tl.float32)
        twins = ((twins * factor).to(dtype) * tl.load(norm + other)[None]).to(tl.float32)
    return (states * turn[None] + twins * cross[None]).to(dtype)


@triton.jit
def _added_kernel(  # type: ignore[no-untyped-def] # Triton reads the names itself
    base, row, weight, result, outputs, inputs, rows: tl.constexpr, inner: tl.constexpr
):
    output = tl.program_id(0) * rows + tl.arange(0, rows)
    sums = tl.zeros((rows, inner), tl.float32)
    for begin in range(0, inputs, inner):
        at = begin + tl.arange(0, inner)
        inside = (output[:, None] < outputs) & (at[None] < inputs)
        # Each weight is read once per step: do not cache it.
        part = tl.load(
            weight + output[:, None].to(tl.int64) * inputs + at[None],
            mask=inside,
            other=0.0,
            eviction_policy="evict_first",
        )
        sums += part.to(tl.float32) * tl.load(row + at, mask=at < inputs, other=0.0).to(tl.float32)[None]
    total = tl.sum(sums, 1) + tl.load(base + output, mask=output < outputs, other=0.0).to(tl.float32)
    tl.store(result + output, total.to(result.dtype.element_ty), mask=output < outputs)
