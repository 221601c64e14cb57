"""The window planner, exhaustively over small numbers, and the mistakes of a well-known tutorial that it avoids."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llmtrack.errors import UsageError
from llmtrack.quality.windows import Window, plan_windows

SMALL = [
    (tokens, max_length, stride)
    for tokens in range(26)
    for max_length in range(1, 9)
    for stride in range(1, max_length + 1)
]


def scored(windows: tuple[Window, ...]) -> list[int]:
    return [token for window in windows for token in range(window.first_scored, window.end)]


@pytest.mark.parametrize("max_length", range(1, 9))
def test_every_token_after_the_first_is_scored_once_and_in_order(max_length: int) -> None:
    for tokens in range(26):
        for stride in range(1, max_length + 1):
            assert scored(plan_windows(tokens, max_length, stride)) == list(range(1, tokens))


def test_no_window_reads_too_much_or_scores_what_it_cannot_predict() -> None:
    for tokens, max_length, stride in SMALL:
        for window in plan_windows(tokens, max_length, stride):
            assert 0 <= window.begin < window.first_scored < window.end <= tokens
            assert window.end - 1 - window.begin <= max_length
            assert window.scored >= 1


def test_the_first_window_scores_all_it_can_and_later_ones_the_stride() -> None:
    for tokens, max_length, stride in SMALL:
        windows = plan_windows(tokens, max_length, stride)
        assert [window.scored for window in windows[:1]] == [min(tokens - 1, max_length)] * (tokens > 1)
        assert all(window.scored == stride for window in windows[1:-1])
        assert all(1 <= window.scored <= stride for window in windows[1:])


def test_each_token_has_the_promised_context() -> None:
    for tokens, max_length, stride in SMALL:
        for window in plan_windows(tokens, max_length, stride):
            for token in range(window.first_scored, window.end):
                assert token - window.begin >= min(token, max_length - stride + 1)


def test_windows_after_the_first_are_full_and_advance() -> None:
    for tokens, max_length, stride in SMALL:
        windows = plan_windows(tokens, max_length, stride)
        assert all(window.end - 1 - window.begin == max_length for window in windows[1:])
        assert all(a.begin < b.begin and a.end == b.first_scored for a, b in pairwise(windows))


def test_by_hand() -> None:
    # Ten tokens, four read at a time: 0-3 predict 1-4; then two new ones each, and one in the last.
    assert plan_windows(10, 4, 2) == (Window(0, 5, 1), Window(2, 7, 5), Window(4, 9, 7), Window(5, 10, 9))
    assert plan_windows(10, 4, 4) == (Window(0, 5, 1), Window(4, 9, 5), Window(5, 10, 9))


@pytest.mark.parametrize("tokens", [0, 1])
def test_nothing_to_predict_is_no_window(tokens: int) -> None:
    assert plan_windows(tokens, 4, 2) == ()


@pytest.mark.parametrize("tokens", range(2, 6))
def test_a_short_stream_is_one_window(tokens: int) -> None:
    for stride in range(1, 5):
        assert plan_windows(tokens, 4, stride) == (Window(0, tokens, 1),)


@pytest.mark.parametrize(("max_length", "stride"), [(4, 5), (4, 0), (4, -1), (1, 2)])
def test_a_stride_that_would_skip_tokens_is_refused(max_length: int, stride: int) -> None:
    with pytest.raises(UsageError, match=f"stride {stride} is not possible: use 1 to max_length"):
        plan_windows(10, max_length, stride)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(UsageError, match="max_length 0"):
        plan_windows(10, 0, 1)


# --- the sliding-window code of a well-known tutorial


def tutorial(tokens: int, max_length: int, stride: int) -> list[tuple[int, int, int]]:
    """The tutorial's loop: begin, end, and how many last tokens are targets."""
    windows, done = [], 0
    for begin in range(0, tokens, stride):
        end = min(begin + max_length, tokens)
        windows.append((begin, end, end - done))
        done = end
        if end == tokens:
            break
    return windows


def tutorial_scored(begin: int, end: int, targets: int) -> list[int]:
    """The model shifts the labels by one, so that the first token of a window is never predicted."""
    return list(range(max(begin + 1, end - targets), end))


def test_the_tutorial_skips_the_first_token_of_each_window_and_ours_does_not() -> None:
    theirs = [token for window in tutorial(12, 4, 4) for token in tutorial_scored(*window)]
    assert theirs == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert scored(plan_windows(12, 4, 4)) == list(range(1, 12))


def test_the_tutorial_underweights_windows_and_ours_weighs_scored_tokens() -> None:
    """At stride 1 each window has one target, so a weight of `targets - 1` is 0; ours is 1."""
    weights = [targets - 1 for _, _, targets in tutorial(12, 4, 1)]
    assert weights == [3] + [0] * 8
    assert [window.scored for window in plan_windows(12, 4, 1)] == [4] + [1] * 7
