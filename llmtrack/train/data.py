"""Training data: split a corpus, cut the training text into windows, and batch them in a resumable order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from llmtrack.errors import UsageError
from llmtrack.spec.task import SPLITS

IGNORED = -100
"""Target of ignored positions, the default of `cross_entropy`."""

PAD = 0


@dataclass(frozen=True)
class Split:
    """A corpus in two parts; `method` is `document` or `contiguous`."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    method: str


def split_texts(texts: Sequence[str], share: float, method: str = "auto") -> Split:
    """Hold out a share of the characters, before tokenization, so that no window spans both parts.

    - `document`: hold out whole documents, those with the smallest digests first, up to the share. The assignment of a
      document does not depend on the rest of the corpus (until the share is reached), and equal documents are on the
      same side.
    - `contiguous`: hold out the end of the corpus, starting at a line if the text has lines.
    - `auto`: `document` if there are two different documents, otherwise `contiguous`.

    Neither depends on a seed: models trained with different seeds share the held-out text.

    Raises:
        UsageError: `share` is not between 0 and 1, `method` is unknown, or a side would be empty.
    """
    if not 0 < share < 1:
        raise UsageError(f"validation share {share:g} is not possible: use more than 0 and less than 1")
    if method not in SPLITS:
        raise UsageError(f"no split {method!r}: use {', '.join(SPLITS)}")
    if method == "auto":
        method = "document" if len(set(texts)) > 1 else "contiguous"
    train, validation = (_by_document if method == "document" else _contiguous)(texts, share)
    if not train or not validation:
        raise UsageError(
            f"the corpus cannot be split by {method}: one side would be empty; use a longer text, or split=contiguous"
        )
    return Split(tuple(train), tuple(validation), method)


def _by_document(texts: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    target = share * sum(map(len, texts))
    held_out, size = set(), 0
    by_digest = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
    # Keep at least one document for training.
    for text in by_digest[:-1]:
        if size >= target:
            break
        held_out.add(text)
        size += len(text) * texts.count(text)
    return [text for text in texts if text not in held_out], [text for text in texts if text in held_out]


def _contiguous(texts: Sequence[str], share: float) -> tuple[list[str], list[str]]:
    cut = round((1 - share) * sum(map(len, texts)))
    for number, text in enumerate(texts):
        if cut < len(text) or number == len(texts) - 1:
            break
        cut -= len(text)
    # Without a line break before this position, cut in the middle of the line.
    cut = text.rfind("\n", 0, cut) + 1 or cut
    before, after = [*texts[:number], text[:cut]], [text[cut:], *texts[number + 1 :]]
    return [text for text in before if text.strip()], [text for text in after if text.strip()]


@dataclass(frozen=True)
class TrainingWindow:
    """A training example in a stream: the model reads tokens `begin` to `end - 1` and predicts the one after each."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """Number of tokens read, which equals the number predicted."""
        return self.end - self.begin


def plan_training_windows(tokens: int, length: int, stride: int = 0) -> tuple[TrainingWindow, ...]:
    """Cover a stream with windows.

    Every token after the first is the target of at least one window; with `stride` equal to `length` or 0, of exactly
    one. Only the last window can be shorter than `length`. A stream of fewer than two tokens has no window.

    Raises:
        UsageError: `length` is under 1, or `stride` is not 0 to `length`: a larger one would skip tokens.
    """
    if length < 1:
        raise UsageError(f"sequence length {length} is not possible: use 1 or more")
    if not 0 <= stride <= length:
        raise UsageError(
            f"window stride {stride} is not possible: use 1 to the sequence length, which is {length}, or 0 for that"
        )
    windows = []
    last = tokens - 1
    for begin in range(0, last, stride or length):
        windows.append(TrainingWindow(begin, min(begin + length, last)))
        if windows[-1].end == last:
            break
    return tuple(windows)


def input_and_target(ids: Sequence[int], window: TrainingWindow) -> tuple[Sequence[int], Sequence[int]]:
    """Return a window's input tokens, and its targets: the same shifted by one.

    >>> input_and_target([2, 1, 4, 5], TrainingWindow(0, 3))
    ([2, 1, 4], [1, 4, 5])
    """
    return ids[window.begin : window.end], ids[window.begin + 1 : window.end + 1]


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
    """Windows over a stream of token ids, as pairs of (length,) input and target ids."""

    def __init__(self, ids: Sequence[int], windows: Sequence[TrainingWindow]) -> None:
        self._ids = torch.tensor(ids, dtype=torch.long)
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return input_and_target(self._ids, self._windows[index])  # type: ignore[arg-type,return-value] # a tensor slices alike


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
    loader: DataLoader[TrainingBatch] = DataLoader(
        dataset,  # type: ignore[arg-type] # rows become a TrainingBatch
        batch_sampler=iter(lambda: list(islice(order, batch_size)), []),
        collate_fn=collate,
        # A separate generator: the loader draws from it, and the global one is for the model's dropout.
        generator=torch.Generator(),
    )
    return iter(loader)


def collate(rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> TrainingBatch:
    """Stack windows into a padded batch."""
    pad = torch.nn.utils.rnn.pad_sequence
    return TrainingBatch(
        inputs=pad([ids for ids, _ in rows], batch_first=True, padding_value=PAD),
        targets=pad([targets for _, targets in rows], batch_first=True, padding_value=IGNORED),
        tokens=sum(len(targets) for _, targets in rows),
    )
