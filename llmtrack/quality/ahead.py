"""Score the beginning of a text while the rest is still being tokenized, so that a GPU need not wait.

The tokens of a text are only certain once all of it has been read. The tokens of its beginning alone are a guess, which
is verified: if it was wrong, the scores based on it are discarded. The result is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

from llmtrack.quality.encoding import Encoded
from llmtrack.quality.windows import Window

SHORTEST = 50_000
"""Minimum length of a text, in characters, for which the overlap pays off."""

_PART = 4
"""Divisor of the text's length: scoring this part takes about as long as tokenizing the rest."""

_UNSURE = 64
"""Tokens dropped from the end of the guess, where the text continues."""

Row = tuple["list[int]", Window]


class WrongGuessError(Exception):
    """The text's tokens differ from those of its beginning alone."""


class Stream:
    """The windows over a text.

    Args:
        whole: returns all tokens; blocks until they are available.
        plan: covers a number of tokens, some of them given, with windows.
        guess: the tokens of the beginning; None: there is no guess.
        expected: the number of windows implied by the guess.
    """

    def __init__(
        self,
        whole: Callable[[], Encoded],
        plan: Callable[[int, int], tuple[Window, ...]],
        guess: Encoded | None,
        expected: int,
    ) -> None:
        self._whole, self._plan, self._guess, self._expected = whole, plan, guess, expected

    @property
    def tokens(self) -> Encoded:
        """All tokens; blocks until they are available."""
        return self._whole()

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """All windows; blocks until the tokens are available."""
        return self._plan(len(self.tokens.ids), self.tokens.given)

    @property
    def expected(self) -> int:
        """The number of windows, estimated while there is a guess."""
        return len(self.windows) if self._guess is None else self._expected

    def rows(self) -> Iterator[Row]:
        """Yield each window with its tokens, the guessed ones first.

        Raises:
            WrongGuessError: the guess was wrong; it is discarded.
        """
        done: tuple[Window, ...] = ()
        if (guess := self._guess) is not None:
            # The last window may end where the text continues.
            done = self._plan(len(guess.ids) - _UNSURE, guess.given)[:-1]
            yield from ((guess.ids, window) for window in done)
            self._guess = None
            used = done[-1].end if done else 0
            if self.windows[: len(done)] != done or self.tokens.ids[:used] != guess.ids[:used]:
                raise WrongGuessError
        yield from ((self.tokens.ids, window) for window in self.windows[len(done) :])


@contextmanager
def read(
    text: str,
    encode: Callable[[str], Encoded],
    plan: Callable[[int, int], tuple[Window, ...]],
    *,
    ahead: bool,
) -> Iterator[Stream]:
    """Tokenize a text and yield its windows; on a GPU, the beginning can be scored meanwhile.

    Args:
        text: the text.
        encode: tokenizes a text.
        plan: covers a number of tokens, some of them given, with windows.
        ahead: whether to start before all tokens are available.
    """
    beginning = text[: len(text) // _PART] if ahead and len(text) >= SHORTEST else ""
    guess = encode(beginning) if beginning else None
    # Without a guess there is nothing to overlap with.
    if guess is None:
        tokens = encode(text)
        yield Stream(lambda: tokens, plan, None, 0)
        return
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(encode, text)
        expected = len(plan(len(guess.ids) * len(text) // len(beginning), guess.given))
        yield Stream(whole.result, plan, guess, expected)
