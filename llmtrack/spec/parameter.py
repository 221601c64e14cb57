"""Validate, parse and format parameters and arguments; every error is one line for the user."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmtrack.errors import UsageError
from llmtrack.host.formatting import truncate, type_name

NONE = "none"
# Beyond any real number of tokens, calls or seconds; context and memory limits are checked where they are known.
LARGEST = 1_000_000_000
MOST_VALUES = 100
_SHOWN = 61
_TRUE, _FALSE = {"true", "t", "1", "yes", "y", "on"}, {"false", "f", "0", "no", "n", "off"}

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Option:
    """Help and constraints of a parameter, beside its type and default.

    Attributes:
        min: minimum value, or minimum length of a text.
        choices: accepted values; empty for any.
        read: parses a text into the value, or raises a `UsageError`.
        tracked: False for what only affects printing or may hold credentials.
        tries: for backend options, the values that `tune` tries beside the default, given the number of CPUs available
            for computing (0 on another device); None for the default only.
        nothing: the word that stands for None.
    """

    help: str
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | tuple[int, ...] = ()
    read: Callable[[str], str] | None = None
    tracked: bool = True
    tries: Callable[[int], tuple[Any, ...]] | None = None
    nothing: str = NONE


CHANCE = Option("", above=0, below=1)
"""Constraints of a probability."""


@dataclass(frozen=True)
class Parameter:
    """A config field with an `Option`.

    Attributes:
        kind: int, float, bool or str; of a list, the type of its values.
        many: whether it is a list (a tuple).
    """

    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """Its command-line name."""
        return flag_of(self.name)

    @property
    def bounds(self) -> str:
        """Describe the accepted numbers; empty if only `LARGEST` bounds them."""
        option, parts = self.option, []
        if self.kind is str:
            return ""
        if option.choices:
            *others, last = map(str, option.choices)
            return " or ".join(filter(None, (", ".join(others), last)))
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
        """Parse a text as on the command line.

        Raises:
            UsageError: the value is invalid.
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
        """Validate a value.

        Raises:
            UsageError: the type or the value is invalid.
        """
        if value is None and self.optional:
            return
        if self.many and not isinstance(value, tuple):
            raise UsageError(f"{self.name} {truncated(value)!r} is not a tuple of values")
        for single in value if self.many else (value,):
            self._check(single)

    def _several(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if not 1 <= len(values) <= MOST_VALUES:
            raise UsageError(f"{self.name}: give 1 to {MOST_VALUES:,} values, separated by commas")
        return tuple(dict.fromkeys(map(self._one, values)))

    def _one(self, argument: Any) -> Any:
        """Convert a text or a Python value; NumPy scalars, which JSON cannot encode, become plain numbers."""
        if self.kind is str and not isinstance(argument, bool):
            argument = self._text(argument)
        try:
            value = (
                self._convert(argument) if isinstance(argument, str) else getattr(argument, "item", lambda: argument)()
            )
        except (ValueError, RuntimeError):  # RuntimeError: a PyTorch tensor with several elements
            raise UsageError(f"{self.name} {truncated(argument)!r} is not {_KINDS[self.kind]}") from None
        self._check(value)
        return value

    def _text(self, argument: Any) -> str:
        """Convert to text; a custom `read` may accept other types, such as PyTorch dtypes."""
        return str(argument) if self.option.read else require_text(self.name, argument)

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
            raise UsageError(f"{self.name} {truncated(value)!r} is not {_KINDS[self.kind]}")
        if self.kind is str:
            if option.choices and value not in option.choices:
                raise UsageError(
                    f"no {self.name} {truncated(value)!r}: use one of {', '.join(map(str, option.choices))}"
                )
            if len(value) < (option.min or 0):
                raise UsageError(f"{self.name} is empty: give some text{f', or {NONE}' if self.optional else ''}")
        elif self.kind in (int, float) and not self._within(value):
            bounds = self.bounds or "a number"
            most = f", {LARGEST:,} at most" if abs(value) > LARGEST else ""
            raise UsageError(
                f"{self.name} {truncated(f'{value:g}' if isinstance(value, float) else value)} is not possible: use {bounds}{most}"
            )

    def _within(self, value: float) -> bool:
        option = self.option
        return (
            (not option.choices or value in option.choices)
            and (isinstance(value, int) or math.isfinite(value))
            and abs(value) <= (LARGEST if option.max is None else option.max)
            and (option.min is None or value >= option.min)
            and (option.above is None or value > option.above)
            and (option.below is None or value < option.below)
        )

    def accept(self, value: Any) -> Any:
        """Convert and validate a Python value or a text.

        Raises:
            UsageError: the type or the value is invalid.
        """
        if value is None and self.optional:
            return None
        if isinstance(value, str) or (self.kind is str and not self.many and not isinstance(value, bool)):
            return self.parse(self._text(value))
        if self.many and isinstance(value, Iterable):
            values = list(value)
            return () if not values and self.default == () else self._several(values)
        return self._several([value]) if self.many else self._one(value)


def require_integer(name: str, value: Any, least: int = 1) -> int:
    """Validate an integer argument.

    Raises:
        UsageError: it is not an integer of at least `least`.
    """
    number: int = Parameter(name, int, False, False, least, Option("", min=least)).accept(value)
    return number


def unexpected(word: str, example: str) -> str:
    """Explain an argument that belongs to no option: usually the rest of a value whose quotes the shell removed.

    Args:
        example: how to pass a value that contains a space.
    """
    if "=" in word:
        return (
            f"unexpected {word!r}: quote a value that holds spaces, such as {example}, and give each parameter an option of "
            "its own"
        )
    return f"unexpected {word!r}: give parameters as NAME=VALUE, such as {example}"


def readable(text: str) -> str:
    """Return a text unchanged if it can be stored and printed.

    Raises:
        UsageError: it contains a NUL or invalid UTF-8.
    """
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{truncated(ascii(text))} is not valid text: it contains a NUL or invalid UTF-8")
    return text


def read_number(name: str, value: str | float, option: Option = Option("")) -> float:
    """Parse a finite number within the bounds of an option.

    Raises:
        UsageError: it is invalid.
    """
    return float(Parameter(name, float, False, False, 0.0, option).accept(value))


def require_text(name: str, value: object) -> str:
    """Return a text or path as text.

    Raises:
        UsageError: it is neither; the message names the argument.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        given = "" if value is None else f"{truncate(repr(value), 60, '...')} "
        raise UsageError(f"{name} {given}is {type_name(value)}: give a text")
    return text


def optional_text(name: str, value: object) -> str | None:
    """Return a text or path as text, or None; raises as `require_text`."""
    return None if value is None else require_text(name, value)


def require_texts(name: str, values: object) -> tuple[str, ...]:
    """Return texts as a tuple, a single text as a tuple of one; raises as `require_text`."""
    if isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable):
        return (require_text(name, values),)
    return tuple(require_text(name, value) for value in values)


def flag_of(name: str) -> str:
    """Return the command-line name of a parameter."""
    return "--" + name.replace("_", "-")


def format_value(value: Any) -> str:
    """Format a value for the command line and MLproject."""
    if value is None or value in ("", ()):
        return NONE
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def truncated(value: Any) -> str:
    """Format a value for a message, truncated."""
    return truncate(str(value), _SHOWN)
