"""A parameter is one field of a config: its type, default, help and bounds stand there and nowhere else.

    lengths: Annotated[tuple[int, ...], Option("Prompt lengths in tokens.", min=1)] = (16, 64, 256)

From it come the command-line option, what is accepted, what is tracked as `cfg.lengths`, MLproject and docs/commands.md.
A field without an `Option` is for programs only. On the command line and in MLproject a list is separated by commas, and
`none` stands for nothing (None, an empty text, an empty list), since MLflow cannot pass an empty parameter.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from llmtrack.errors import UsageError
from llmtrack.spec.parameter import Option as Option
from llmtrack.spec.parameter import Parameter, short, written

Config = TypeVar("Config")


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


def accepted(who: str, configs: Iterable[type], given: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
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
            raise UsageError(f"{who} takes no option {short(name)!r}{hint}: {takes}")
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


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    inner, *extras = get_args(hint)
    (option,) = (each for each in extras if isinstance(each, Option))
    optional = get_origin(inner) in (Union, types.UnionType)
    if optional:
        (inner,) = (each for each in get_args(inner) if each is not type(None))
    many = get_origin(inner) is tuple
    return Parameter(name, get_args(inner)[0] if many else inner, many, optional, default, option)
