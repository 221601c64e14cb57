"""Windows of the `rolling` protocol: plan them, and stream them while the text is still being tokenized.

Tokens are numbered from 0 in the order of the stream. Token 0 is given (the beginning-of-sequence token, or the first
of the text); each of the others is predicted exactly once.

On a GPU, scoring starts early. The tokens of a text are only certain once all of it has been read; those of its
beginning alone are a guess, which is verified: if it was wrong, the scores based on it are discarded. The result is the
same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from llmtrack.errors import UsageError
from llmtrack.quality.encoding import Encoded

SHORTEST = 50_000
"""Minimum length of a text, in characters, for which an early start pays off."""

_PART = 4
"""Divisor of the text's length: scoring this part takes about as long as tokenizing the rest."""

_UNSURE = 64
"""Tokens dropped from the end of the guess, where the text continues."""


@dataclass(frozen=True)
class Window:
    """A window over a stream.

    The model reads tokens `begin` to `end - 2` and predicts the token after each; the last one is only a target. The
    predictions of tokens `first_scored` to `end - 1` count; `first_scored` is after `begin`.
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


Row = tuple[Sequence[int], Window]
"""All tokens of a text, and a window over them; tokens are copied only when a batch is collated."""

Plan = Callable[[int, int], tuple[Window, ...]]
"""Covers a number of tokens, some of them given, with windows."""


class WrongGuessError(Exception):
    """The text's tokens differ from those of its beginning alone."""


class Stream:
    """The windows over a text that may still be being tokenized.

    Args:
        tokenized: returns all tokens; blocks until they are available.
        plan: covers them with windows.
        guess: the tokens of the beginning, if scoring starts with them.
        expected: the number of windows that the guess implies.
    """

    def __init__(self, tokenized: Callable[[], Encoded], plan: Plan, guess: Encoded | None, expected: int) -> None:
        self._tokenized, self._plan, self._guess, self._expected = tokenized, plan, guess, expected

    @property
    def tokens(self) -> Encoded:
        """All tokens; blocks until they are available."""
        return self._tokenized()

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """All windows; blocks until the tokens are available."""
        return self._plan(len(self.tokens.ids), self.tokens.given)

    @property
    def expected(self) -> int:
        """The number of windows, estimated while there is a guess."""
        return len(self.windows) if self._guess is None else self._expected

    def rows(self) -> Iterator[Row]:
        """Yield each window with the tokens, the guessed ones first.

        Raises:
            WrongGuessError: the guess was wrong; it is discarded.
        """
        early: tuple[Window, ...] = ()
        if (guess := self._guess) is not None:
            # The last window may end where the text continues.
            early = self._plan(len(guess.ids) - _UNSURE, guess.given)[:-1]
            yield from ((guess.ids, window) for window in early)
            self._guess = None
            used = early[-1].end if early else 0
            if self.windows[: len(early)] != early or self.tokens.ids[:used] != guess.ids[:used]:
                raise WrongGuessError
        yield from ((self.tokens.ids, window) for window in self.windows[len(early) :])


@contextmanager
def stream_windows(text: str, encode: Callable[[str], Encoded], plan: Plan, *, early: bool) -> Iterator[Stream]:
    """Tokenize a text and yield its windows; with `early`, those of a long text's beginning before all is tokenized."""
    beginning = text[: len(text) // _PART] if early and len(text) >= SHORTEST else ""
    guess = encode(beginning) if beginning else None
    if guess is None:
        tokens = encode(text)
        yield Stream(lambda: tokens, plan, None, 0)
        return
    with ThreadPoolExecutor(1) as thread:
        tokenized = thread.submit(encode, text)
        expected = len(plan(len(guess.ids) * len(text) // len(beginning), guess.given))
        yield Stream(tokenized.result, plan, guess, expected)
