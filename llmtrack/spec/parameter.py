"""One parameter: what it is, which values it accepts, and how a value is read and written as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmtrack.errors import UsageError
from llmtrack.host.words import cut
from llmtrack.spec.text_args import one_text

NONE = "none"
# More tokens, calls or seconds than any machine has; what a context or a memory holds is checked where it is known.
LARGEST = 1_000_000_000
MOST_VALUES = 100
_SHOWN = 61
_TRUE, _FALSE = {"true", "t", "1", "yes", "y", "on"}, {"false", "f", "0", "no", "n", "off"}

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Option:
    """What a parameter is, beside its type and default.

    Attributes:
        help: what it does, in one sentence.
        min: least number, or least length of a text.
        max: greatest number.
        above: a number that it must exceed.
        below: a number that it must stay under.
        choices: the texts that are accepted; empty: any.
        read: turns a text into the value that is meant, or raises a `UsageError`.
        tracked: whether it is tracked with a study: not where it only prints, or may hold credentials.
        tries: of what a backend can be told: returns the values that `tune` tries beside the default, from the number of
            CPUs that may compute (0: another device does); None: the default only.
        nothing: the word that stands for None, where that may be.
    """

    help: str
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[str], str] | None = None
    tracked: bool = True
    tries: Callable[[int], tuple[Any, ...]] | None = None
    nothing: str = NONE


CHANCE = Option("", above=0, below=1)
"""What a chance is."""


@dataclass(frozen=True)
class Parameter:
    """A field of a config that has an `Option`.

    Attributes:
        name: name of the field.
        kind: int, float, bool or str: the value, or each value of a list.
        many: whether it is a list (a tuple).
        optional: whether it may be None.
        default: its default.
        option: what else it is.
    """

    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return flag_of(self.name)

    @property
    def bounds(self) -> str:
        """What numbers are accepted, in words; empty: any up to `LARGEST`."""
        option, parts = self.option, []
        if self.kind is str:
            return ""
        if option.above is not None:
            parts.append(f"more than {option.above:,g}")
        if option.min is not None and option.max is not None:
            parts.append(f"{option.min:,g} to {option.max:,g}")
        elif option.min is not None:
            parts.append(f"{option.min:,g} or more")
        elif option.max is not None:
            parts.append(f"{option.max:,g} at most")
        if option.below is not None:
            parts.append(f"less than {option.below:,g}")
        return " and ".join(parts)

    def parse(self, text: str) -> Any:
        """Return the value that a text stands for.

        Raises:
            UsageError: it stands for none that is accepted.
        """
        word = readable(text).strip().lower()
        if word in (NONE, self.option.nothing) or (word == "" and not self.option.min):
            if self.optional:
                return None
            if self.default in ("", ()):
                return self.default
        if self.optional and self.kind is int and word == "0" and (self.option.min or 0) > 0:
            return None
        if not self.many:
            return self._one(text)
        return self._several([part.strip() for part in text.split(",") if part.strip()])

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            UsageError: it is of another type, or not accepted.
        """
        if value is None and self.optional:
            return
        if self.many and not isinstance(value, tuple):
            raise UsageError(f"{self.name} {short(value)!r} is not a tuple of values")
        for each in value if self.many else (value,):
            self._check(each)

    def _several(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if not 1 <= len(values) <= MOST_VALUES:
            raise UsageError(f"{self.name}: give 1 to {MOST_VALUES:,} values, separated by commas")
        return tuple(dict.fromkeys(map(self._one, values)))

    def _one(self, given: Any) -> Any:
        """Return the value that a text stands for, or a program's own value; NumPy's numbers, which JSON does not know, as plain ones."""
        if self.kind is str and not isinstance(given, bool):
            given = self._text(given)
        try:
            value = self._convert(given) if isinstance(given, str) else getattr(given, "item", lambda: given)()
        except (ValueError, RuntimeError):  # of several numbers at once, PyTorch's too
            raise UsageError(f"{self.name} {short(given)!r} is not {_KINDS[self.kind]}") from None
        self._check(value)
        return value

    def _text(self, given: Any) -> str:
        """Return a text; what reads it may know more of a value, such as a dtype of PyTorch's."""
        return str(given) if self.option.read else one_text(self.name, given)

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            word = text.strip().lower()
            if word not in _TRUE | _FALSE:
                raise ValueError(text)
            return word in _TRUE
        if self.kind is str:
            return self.option.read(text) if self.option.read else text
        return self.kind(text)

    def _check(self, value: Any) -> None:
        option = self.option
        kinds = (int, float) if self.kind is float else (self.kind,)
        if type(value) not in kinds:
            raise UsageError(f"{self.name} {short(value)!r} is not {_KINDS[self.kind]}")
        if option.choices and value not in option.choices:
            raise UsageError(f"no {self.name} {short(value)!r}: use {' or '.join(option.choices)}")
        if self.kind is str:
            if len(value) < (option.min or 0):
                raise UsageError(f"{self.name} is empty: give some text{f', or {NONE}' if self.optional else ''}")
        elif self.kind in (int, float) and not self._within(value):
            bounds = self.bounds or "a number"
            most = f", {LARGEST:,} at most" if abs(value) > LARGEST else ""
            raise UsageError(
                f"{self.name} {short(f'{value:g}' if isinstance(value, float) else value)} is not possible: use {bounds}{most}"
            )

    def _within(self, value: float) -> bool:
        option = self.option
        return (
            (isinstance(value, int) or math.isfinite(value))
            and abs(value) <= (LARGEST if option.max is None else option.max)
            and (option.min is None or value >= option.min)
            and (option.above is None or value > option.above)
            and (option.below is None or value < option.below)
        )

    def accept(self, value: Any) -> Any:
        """Return the value that a program or a text gave.

        Raises:
            UsageError: it is of another type, or not accepted.
        """
        if value is None and self.optional:
            return None
        if isinstance(value, str) or (self.kind is str and not self.many and not isinstance(value, bool)):
            return self.parse(self._text(value))
        if self.many and isinstance(value, Iterable):
            values = list(value)
            return () if not values and self.default == () else self._several(values)
        return self._several([value]) if self.many else self._one(value)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number that a program gave.

    Raises:
        UsageError: it is none, or less than the least.
    """
    number: int = Parameter(name, int, False, False, least, Option("", min=least)).accept(value)
    return number


def unexpected(word: str, example: str) -> str:
    """Say what is wrong with a word that belongs to no option: mostly the rest of a value whose quotes the shell took.

    Args:
        word: the word.
        example: how a value that holds a space is given.
    """
    if "=" in word:
        return f"unexpected {word!r}: quote a value that holds spaces, such as {example}"
    return f"unexpected {word!r}: give parameters as NAME=VALUE, such as {example}"


def readable(text: str) -> str:
    """Return a text as it is.

    Raises:
        UsageError: it cannot be stored or printed: it holds a NUL, or bytes that are no UTF-8.
    """
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{short(ascii(text))} is no text: it holds a NUL, or bytes that are no UTF-8")
    return text


def read_number(name: str, value: str | float, option: Option = Option("")) -> float:
    """Return the finite number that a text stands for, or that a program gave, within the bounds of an option.

    Raises:
        UsageError: it stands for none.
    """
    return float(Parameter(name, float, False, False, 0.0, option).accept(value))


def flag_of(name: str) -> str:
    """Return a parameter's name on the command line."""
    return "--" + name.replace("_", "-")


def written(value: Any) -> str:
    """Return a value as it is written on the command line and in MLproject."""
    if value is None or value in ("", ()):
        return NONE
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def short(value: Any) -> str:
    """Return a value as text that a message has room for."""
    return cut(str(value), _SHOWN)
