"""Score the beginning of a text while all of it is still being turned into tokens, which a GPU would have to wait for.

With which tokens a text begins is certain only once all of it has been read. So those of its beginning alone are a guess, which
is checked: where it was wrong, what was scored by it is forgotten. The result is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

from llmtrack.quality.encoding import Encoded
from llmtrack.quality.windows import Window

SHORTEST = 50_000
"""Characters of a text below which nothing is won."""

_PART = 4
"""The beginning is this part of a text: to score it takes about as long as to read the rest."""

_UNSURE = 64
"""Tokens at the end of the beginning that are not used: the text goes on there."""

Row = tuple["list[int]", Window]


class WrongGuessError(Exception):
    """A text begins with other tokens than its beginning alone."""


class Stream:
    """The windows over a text.

    Args:
        whole: returns all of its tokens; waits for them.
        plan: covers a number of tokens, of which some are given, with windows.
        guess: the tokens of its beginning; None: there is no guess.
        expected: how many windows there are by that guess.
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
        """All tokens; waits for them."""
        return self._whole()

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """All windows; waits for the tokens."""
        return self._plan(len(self.tokens.ids), self.tokens.given)

    @property
    def expected(self) -> int:
        """The number of windows, as far as it is known."""
        return len(self.windows) if self._guess is None else self._expected

    def rows(self) -> Iterator[Row]:
        """Yield the windows with the tokens that they are over, those of the guess first.

        Raises:
            WrongGuessError: the guess was wrong; from now on there is none.
        """
        done: tuple[Window, ...] = ()
        if (guess := self._guess) is not None:
            # The last one may end where the text does not.
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
    """Turn a text into tokens, and yield the windows over it; on a GPU while what is there is scored.

    Args:
        text: the text.
        encode: turns a text into tokens.
        plan: covers a number of tokens, of which some are given, with windows.
        ahead: whether to begin before all tokens are there.
    """
    beginning = text[: len(text) // _PART] if ahead and len(text) >= SHORTEST else ""
    guess = encode(beginning) if beginning else None
    # Where there is no guess, there is nothing that could go on meanwhile.
    if guess is None:
        tokens = encode(text)
        yield Stream(lambda: tokens, plan, None, 0)
        return
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(encode, text)
        expected = len(plan(len(guess.ids) * len(text) // len(beginning), guess.given))
        yield Stream(whole.result, plan, guess, expected)
