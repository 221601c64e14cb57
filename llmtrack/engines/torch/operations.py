"""Count the floating-point operations of an operator call: two per multiply-add of a matrix product."""

from __future__ import annotations

import math
from typing import Any

import torch

_ADDS_FIRST = frozenset({"addmm", "baddbmm", "addmv", "addbmm"})
"""Operators that add their first argument to the product of the next two."""

_PRODUCTS = frozenset({"linear", "matmul", "mv", "dot"})
_CONVOLUTIONS = frozenset({"convolution", "conv1d", "conv2d"})


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
