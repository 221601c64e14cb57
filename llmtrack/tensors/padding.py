"""Pad rows of token ids into a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, side: str, length: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows to a length, by default that of the longest; return ids and attention mask, (rows, length) int64.

    The mask follows from the lengths, not from the pad's id, which may be the end-of-sequence token.
    """
    width = length or max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        columns = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        ids[index, columns] = torch.tensor(row, dtype=torch.int64)
        mask[index, columns] = 1
    return ids, mask
