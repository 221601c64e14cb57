"""Command-line options, made from the parameters of a config."""

from __future__ import annotations

from typing import Any

import click

from llmtrack.errors import LlmtrackError
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import Parameter, written


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
