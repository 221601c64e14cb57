"""A parameter is one field of a config: its type, default, help and bounds stand there and nowhere else.

    lengths: Annotated[tuple[int, ...], Option("Prompt lengths in tokens.", min=1)] = (16, 64, 256)

From it come the command-line option, what is accepted, what is tracked as `cfg.lengths`, MLproject and docs/commands.md.
A field without an `Option` is for programs only. On the command line and in MLproject a list is separated by commas, and
`none` stands for nothing (None, an empty text, an empty list), since MLflow cannot pass an empty parameter.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from llmtrack.errors import LlmtrackError, UsageError

NONE = "none"
# More tokens, calls or seconds than any machine has; what a context or a memory holds is checked where it is known.
LARGEST = 1_000_000_000
MOST_VALUES = 100
_SHOWN = 60
_TRUE, _FALSE = {"true", "t", "1", "yes", "y", "on"}, {"false", "f", "0", "no", "n", "off"}

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

Config = TypeVar("Config")


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
            raise UsageError(f"{self.name} {_short(value)!r} is not a tuple of values")
        for each in value if self.many else (value,):
            self._check(each)

    def _several(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if not 1 <= len(values) <= MOST_VALUES:
            raise UsageError(f"{self.name}: give 1 to {MOST_VALUES:,} values, separated by commas")
        return tuple(dict.fromkeys(map(self._one, values)))

    def _one(self, given: Any) -> Any:
        """Return the value that a text stands for, or a program's own value; NumPy's numbers, which JSON does not know, as plain ones."""
        if self.kind is str and not isinstance(given, bool):
            given = str(given)
        try:
            value = (
                self._convert(given) if isinstance(given, str) else getattr(given, "item", lambda: given)()
            )
        except ValueError:
            raise UsageError(f"{self.name} {_short(given)!r} is not {_KINDS[self.kind]}") from None
        self._check(value)
        return value

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
            raise UsageError(f"{self.name} {_short(value)!r} is not {_KINDS[self.kind]}")
        if option.choices and value not in option.choices:
            raise UsageError(f"no {self.name} {_short(value)!r}: use {' or '.join(option.choices)}")
        if self.kind is str:
            if len(value) < (option.min or 0):
                raise UsageError(
                    f"{self.name} is empty: give some text{f', or {NONE}' if self.optional else ''}"
                )
        elif self.kind in (int, float) and not self._within(value):
            bounds = self.bounds or "a number"
            most = f", {LARGEST:,} at most" if abs(value) > LARGEST else ""
            raise UsageError(
                f"{self.name} {_short(f'{value:g}' if isinstance(value, float) else value)} is not possible: use {bounds}{most}"
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
            return self.parse(str(value))
        if self.many and isinstance(value, Iterable):
            values = list(value)
            return () if not values and self.default == () else self._several(values)
        return self._several([value]) if self.many else self._one(value)


def readable(text: str) -> str:
    """Return a text as it is.

    Raises:
        UsageError: it cannot be stored or printed: it holds a NUL, or bytes that are no UTF-8.
    """
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{_short(ascii(text))} is no text: it holds a NUL, or bytes that are no UTF-8")
    return text


def read_number(name: str, text: str, option: Option = Option("")) -> float:
    """Return the finite number that a text stands for, within the bounds of an option.

    Raises:
        UsageError: it stands for none.
    """
    return float(Parameter(name, float, False, False, 0.0, option).parse(text))


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


class Checked:
    """A config that refuses what its parameters do not accept, however it is made."""

    def __post_init__(self) -> None:
        for parameter in parameters(type(self)):
            parameter.check(getattr(self, parameter.name))


@dataclass(frozen=True)
class NoOptions(Checked):
    """The options of what can be told nothing."""


def why_unusable(config: Any) -> str:
    """Say in words why something cannot be what a backend or a recipe can be told; empty if it can."""
    if not (isinstance(config, type) and is_dataclass(config)):
        return "its options are not a dataclass"
    try:
        config()
        for each in parameters(config):
            each.check(each.default)
    except Exception as error:  # whatever another package declares
        return f"its options {config.__name__} cannot be read: {type(error).__name__}: {error}"
    return ""


def chosen(config: type[Config], given: Iterable[tuple[str, Any]]) -> Config:
    """Return a config with those of the given (name, value) pairs that are its own.

    Raises:
        UsageError: a value is not accepted.
    """
    own = {each.name: each for each in parameters(config)}
    return config(**{name: own[name].accept(value) for name, value in given if name in own})


def accepted(
    who: str, configs: Iterable[type], given: Iterable[tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    """Return (name, value) pairs with the values that are meant; each must belong to one of some configs.

    Args:
        who: what takes them, in words.
        configs: all that it takes.
        given: what it is told.

    Raises:
        UsageError: it does not take one, or not such a value; the message names near ones.
    """
    own = {each.name: each for config in configs for each in parameters(config)}
    found = []
    for name, value in given:
        if name not in own:
            near = get_close_matches(name, own, n=2)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            takes = f"it takes {', '.join(sorted(own))}" if own else "it takes none"
            raise UsageError(f"{who} takes no option {_short(name)!r}{hint}: {takes}")
        found.append((name, own[name].accept(value)))
    return tuple(found)


def parameters(config: type) -> tuple[Parameter, ...]:
    """Return the parameters of a config: its own first, then those of each group that it includes."""
    return _parameters(config)


@cache
def _parameters(config: type[Any]) -> tuple[Parameter, ...]:
    hints = get_type_hints(config, include_extras=True)
    defaults = {field.name: field.default for field in fields(config)}
    names = dict.fromkeys(name for base in config.__mro__ for name in inspect.get_annotations(base))
    return tuple(
        _parameter(name, hints[name], defaults[name])
        for name in names
        if name in defaults and get_origin(hints[name]) is Annotated
    )


def tracked(config: Any, **resolved: Any) -> dict[str, Any]:
    """Return the parameters of a config to track with a study.

    Args:
        config: a config.
        resolved: what a parameter came to mean, and what else is to be tracked.
    """
    own = {each.name: getattr(config, each.name) for each in parameters(type(config)) if each.option.tracked}
    return {
        name: written(value) if value is None or isinstance(value, tuple) else value
        for name, value in (own | resolved).items()
    }


def changed(config: Any, tracked_only: bool = True) -> dict[str, str]:
    """Return, as the command line takes it, what a config says otherwise than by default.

    Args:
        config: a config.
        tracked_only: leave out what is not tracked.
    """
    return {
        each.name: written(getattr(config, each.name))
        for each in parameters(type(config))
        if getattr(config, each.name) != each.default and (each.option.tracked or not tracked_only)
    }


def taken(config: type[Config], source: Any, **changes: Any) -> Config:
    """Return a config (or a part of one, such as a task) with what another one says about the same fields."""
    names = [field.name for field in fields(config)]  # type: ignore[arg-type]
    return config(**{name: getattr(source, name) for name in names if hasattr(source, name)} | changes)


def click_options(config: type) -> list[click.Option]:
    """Return the command-line options of a config."""
    return [_click_option(parameter) for parameter in parameters(config)]


class Value(click.ParamType):
    """The value of a parameter."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        kinds = {int: "integer", float: "float", bool: "boolean", str: "text"}
        self.name = kinds[parameter.kind] + (",..." if parameter.many else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what a text stands for."""
        if not isinstance(value, str):
            return value
        try:
            return self.parameter.parse(value)
        except LlmtrackError as error:
            self.fail(str(error), param, ctx)


def _click_option(parameter: Parameter) -> click.Option:
    choices = parameter.option.choices
    accepted = f"of {', '.join(choices)}" if parameter.many and choices else parameter.bounds
    shown = f"[default: {written(parameter.default)}{'; ' if accepted else ''}{accepted}]"
    switch: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if parameter.kind is bool else {}
    return click.Option(
        [parameter.flag, parameter.name],
        type=Value(parameter),
        default=written(parameter.default),
        help=f"{parameter.option.help}  {shown}",
        metavar=f"[{'|'.join(choices)}]" if choices and not parameter.many else None,
        **switch,
    )


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    inner, *extras = get_args(hint)
    (option,) = (each for each in extras if isinstance(each, Option))
    optional = get_origin(inner) in (Union, types.UnionType)
    if optional:
        (inner,) = (each for each in get_args(inner) if each is not type(None))
    many = get_origin(inner) is tuple
    return Parameter(name, get_args(inner)[0] if many else inner, many, optional, default, option)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
