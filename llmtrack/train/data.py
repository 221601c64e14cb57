"""Windows as PyTorch data: a dataset, a resumable order, and padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from llmtrack.train.windows import TrainingWindow, input_and_target

IGNORED = -100
"""Target of ignored positions, the default of `cross_entropy`."""

PAD = 0


@dataclass(frozen=True)
class TrainingBatch:
    """A batch of windows, padded on the right, which a causal model's real positions never attend to.

    Attributes:
        inputs: (rows, length) token ids to read.
        targets: (rows, length) token ids to predict, `IGNORED` at pads.
        tokens: number of targets that count.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    tokens: int


class WindowDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The windows of a stream as pairs of (length,) input and target ids.

    Args:
        ids: the stream.
        windows: what `plan_training_windows` gives.
    """

    def __init__(self, ids: Sequence[int], windows: Sequence[TrainingWindow]) -> None:
        self._ids = torch.tensor(ids, dtype=torch.long)
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        read, predicted = input_and_target(self._ids, self._windows[index])  # type: ignore[arg-type] # a tensor slices alike
        return read, predicted  # type: ignore[return-value]


def sample_order(size: int, seed: int, start: int = 0) -> Iterator[int]:
    """Yield indexes below `size` forever: one shuffle per epoch, from position `start` on.

    The order depends on `size` and `seed` only, so that a position suffices to resume.
    """
    epoch, skip = divmod(start, size)
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(size)[skip:].tolist()
        epoch, skip = epoch + 1, 0


def batches(dataset: WindowDataset, batch_size: int, seed: int, start: int = 0) -> Iterator[TrainingBatch]:
    """Yield shuffled batches forever, skipping the first `start` windows of the order.

    A batch may span two epochs, so that every window is read once per epoch.
    """
    order = sample_order(len(dataset), seed, start)
    rows = iter(lambda: list(islice(order, batch_size)), [])
    # A separate generator: the loader draws from it, and the global one is for the model's dropout.
    loader: DataLoader[TrainingBatch] = DataLoader(
        dataset,  # type: ignore[arg-type] # rows become a TrainingBatch
        batch_sampler=rows,
        collate_fn=collate,
        generator=torch.Generator(),
    )
    return iter(loader)


def collate(rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> TrainingBatch:
    """Stack windows into a batch."""
    pad = torch.nn.utils.rnn.pad_sequence
    return TrainingBatch(
        inputs=pad([read for read, _ in rows], batch_first=True, padding_value=PAD),
        targets=pad([predicted for _, predicted in rows], batch_first=True, padding_value=IGNORED),
        tokens=sum(len(predicted) for _, predicted in rows),
    )
