"""Parameters are fields of a config dataclass, which holds their type, default, help and bounds.

    lengths: Annotated[tuple[int, ...], Option("Prompt lengths in tokens.", min=1)] = (16, 64, 256)

The command-line option, its validation, the tracked `cfg.lengths`, MLproject and docs/commands.md are generated from
it. A field without an `Option` can only be set from Python. On the command line and in MLproject, lists are
comma-separated and `none` stands for None, an empty text or an empty list, because MLflow cannot pass an empty
parameter.
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
from llmtrack.spec.parameter import Parameter, format_value, truncated

Config = TypeVar("Config")


class Checked:
    """Base class of configs that validate their parameters on construction."""

    def __post_init__(self) -> None:
        for parameter in parameters(type(self)):
            parameter.check(getattr(self, parameter.name))


@dataclass(frozen=True)
class NoOptions(Checked):
    """Options class of a backend or recipe that has none."""


def why_unusable(config: Any) -> str:
    """Explain why an object cannot serve as an options class; empty if it can."""
    if not (isinstance(config, type) and is_dataclass(config)):
        return "its options are not a dataclass"
    try:
        config()
        for parameter in parameters(config):
            parameter.check(parameter.default)
    except Exception as error:  # third-party code may raise anything
        return f"its options {config.__name__} cannot be read: {type(error).__name__}: {error}"
    return ""


def chosen(config: type[Config], options: Iterable[tuple[str, Any]]) -> Config:
    """Build a config from the (name, value) pairs that name its fields; ignore the others.

    Raises:
        UsageError: a value is invalid.
    """
    known = {parameter.name: parameter for parameter in parameters(config)}
    return config(**{name: known[name].accept(value) for name, value in options if name in known})


def check_options(
    owner: str, configs: Iterable[type], options: Iterable[tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    """Validate and convert (name, value) pairs; each name must belong to one of the configs.

    Args:
        owner: backend or recipe, for error messages.

    Raises:
        UsageError: a name is unknown (the message suggests close matches) or a value is invalid.
    """
    known = {parameter.name: parameter for config in configs for parameter in parameters(config)}
    accepted = []
    for name, value in options:
        if name not in known:
            near = get_close_matches(name, known, n=2)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise UsageError(f"{owner} takes no option {truncated(name)!r}{hint}: {takes}")
        accepted.append((name, known[name].accept(value)))
    return tuple(accepted)


def parameters(config: type) -> tuple[Parameter, ...]:
    """List a config's parameters: its own first, then those of each inherited group."""
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


def tracked_settings(config: Any, **resolved: Any) -> dict[str, Any]:
    """Return the parameters to track with a study, with resolved values in place of, or beside, the config's own."""
    settings = {p.name: getattr(config, p.name) for p in parameters(type(config)) if p.option.tracked}
    return {
        name: format_value(value) if value is None or isinstance(value, tuple) else value
        for name, value in (settings | resolved).items()
    }


def non_defaults(config: Any, tracked_only: bool = True) -> dict[str, str]:
    """Return the parameters that differ from their default, as command-line text."""
    return {
        p.name: format_value(getattr(config, p.name))
        for p in parameters(type(config))
        if getattr(config, p.name) != p.default and (p.option.tracked or not tracked_only)
    }


def config_from(config: type[Config], source: Any, **changes: Any) -> Config:
    """Build a config from the fields of the same name of another object."""
    names = [field.name for field in fields(config)]  # type: ignore[arg-type]
    return config(**{name: getattr(source, name) for name in names if hasattr(source, name)} | changes)


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    inner, *extras = get_args(hint)
    (option,) = (extra for extra in extras if isinstance(extra, Option))
    optional = get_origin(inner) in (Union, types.UnionType)
    if optional:
        (inner,) = (member for member in get_args(inner) if member is not type(None))
    many = get_origin(inner) is tuple
    return Parameter(name, get_args(inner)[0] if many else inner, many, optional, default, option)
