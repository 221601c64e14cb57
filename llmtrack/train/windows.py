"""Cut a stream of tokens into training windows: the target is the input shifted by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.errors import UsageError


@dataclass(frozen=True)
class TrainingWindow:
    """One training example over a stream: the model reads `begin` to `end - 1` and predicts the token after each.

    Attributes:
        begin: first token that is read.
        end: the last predicted token; it is not read.
    """

    begin: int
    end: int

    @property
    def length(self) -> int:
        """Number of tokens read, which equals the number predicted."""
        return self.end - self.begin


def plan_training_windows(tokens: int, length: int, stride: int = 0) -> tuple[TrainingWindow, ...]:
    """Cover a stream with windows.

    Every token after the first is the target of at least one window; with `stride` equal to `length`, of exactly one.
    Only the last window can be shorter than `length`.

    Args:
        tokens: number of tokens of the stream.
        length: tokens that a window reads.
        stride: tokens between the beginnings of windows; 0: `length`.

    Returns:
        The windows in the order of the stream; empty if there is nothing to predict.

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
    """Return the input and target tokens of a window.

    >>> input_and_target([2, 1, 4, 5], TrainingWindow(0, 3))
    ([2, 1, 4], [1, 4, 5])
    """
    return ids[window.begin : window.end], ids[window.begin + 1 : window.end + 1]
