"""Plan the windows of the `rolling` protocol: which tokens a model reads, and which predictions count.

Tokens are numbered from 0 in the order of the stream. Token 0 is given (the beginning-of-sequence token, or the first
of the text); each of the others is predicted exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmtrack.errors import UsageError


@dataclass(frozen=True)
class Window:
    """One window over a stream.

    The model reads tokens `begin` to `end - 2` and predicts the token after each; the last one is only a target. The
    predictions of tokens `first_scored` to `end - 1` count.

    Attributes:
        begin: first token that is read.
        end: one past the last predicted token.
        first_scored: first token whose prediction counts, after `begin`.
    """

    begin: int
    end: int
    first_scored: int

    @property
    def scored(self) -> int:
        """Number of predictions that count."""
        return self.end - self.first_scored


def plan_windows(tokens: int, max_length: int, stride: int, given: int = 1) -> tuple[Window, ...]:
    """Cover a stream with windows that score each token after the given ones exactly once.

    The first window scores all its predictions. Each later one reads the `max_length` tokens before its last target and
    scores the `stride` new tokens, the last window possibly fewer. So a scored token has at least `max_length - stride
    + 1` tokens of context, or all that precede it. With `stride == max_length` the windows share one token: the last
    target of one is the first token read by the next, so that the first new token is predicted, too.
    lm-evaluation-harness cuts a rolling log-likelihood the same way (`lm_eval.utils.get_rolling_token_windows`, with
    `context_len = max_length - stride + 1`).

    Args:
        tokens: number of tokens, the given ones included.
        max_length: maximum tokens read per window.
        stride: new tokens of each window after the first.
        given: tokens at the beginning that are not scored.

    Returns:
        The windows in the order of the stream; empty if there is nothing to predict.

    Raises:
        UsageError: `max_length` or `stride` is under 1, `stride` is over `max_length`, which would leave tokens
            unpredicted, or a window does not reach past the given tokens.
    """
    if max_length < 1:
        raise UsageError(f"max_length {max_length} is not possible: use 1 or more")
    if not 1 <= stride <= max_length:
        raise UsageError(f"stride {stride} is not possible: use 1 to max_length, which is {max_length}")
    if not 1 <= given <= max_length:
        raise UsageError(f"max_length {max_length} is not possible: {given} tokens stand before the text")
    if tokens <= given:
        return ()
    windows = [Window(0, min(tokens, max_length + 1), given)]
    while (done := windows[-1].end) < tokens:
        end = min(done + stride, tokens)
        windows.append(Window(end - 1 - max_length, end, done))
    return tuple(windows)
