"""Build the command of an experiment, with its options, from its config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import click

from llmtrack.errors import LlmtrackError
from llmtrack.experiment import Declaration
from llmtrack.host.console import print_text
from llmtrack.report.terminal import make_console
from llmtrack.run.main import USAGE, exit_codes, run_experiment
from llmtrack.run.settings import unknown_parameter
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import Parameter, format_value, unexpected
from llmtrack.tracking.write.amend import explain_refusal


class ConfigCommand(click.Command):
    """A command whose options are the parameters of a config; unknown ones are rejected in one line."""

    def __init__(self, name: str, config: type, run: Callable[[Any], None], **settings: Any) -> None:
        def callback(**values: Any) -> None:
            with exit_codes(make_console()):
                run(config(**values))

        super().__init__(name, callback=callback, params=list(click_options(config)), **settings)
        self.config = config

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        arguments = tuple(args)
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
            if not rest:
                return rest
            reason = unexpected(rest[0], "--backend 'llamacpp cache_type=f32'")
        except click.NoSuchOption as error:
            reason = self._unknown(error.option_name, arguments)
        except click.UsageError as error:
            reason = error.format_message()
        print_text(f"error: {reason}", err=True)
        explain_refusal(reason)
        raise click.exceptions.Exit(USAGE)

    def _unknown(self, flag: str, arguments: Sequence[str]) -> str:
        # `mlflow run` passes undeclared parameters through in its own spelling.
        name = flag.lstrip("-").replace("-", "_")
        values = [value for name, value in pairwise((*arguments, "")) if name == flag]
        values += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{flag}=")]
        value = values[0] if values and not values[0].startswith("--") else ""
        return str(unknown_parameter(str(self.name), self.config, name, value or None))


def command(declared: Declaration[Any]) -> ConfigCommand:
    """Return the command that runs a declared experiment."""

    def run(config: Any) -> None:
        run_experiment(declared.experiment(config), config)

    return ConfigCommand(declared.name, declared.config, run, help=declared.question)


def click_options(config: type) -> list[click.Option]:
    """Return the command-line options of a config."""
    return [_click_option(parameter) for parameter in parameters(config)]


class Value(click.ParamType):
    """Click type of a parameter."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter
        kinds = {int: "integer", float: "float", bool: "boolean", str: "text"}
        self.name = kinds[parameter.kind] + (",..." if parameter.many else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value."""
        if not isinstance(value, str):
            return value
        try:
            return self.parameter.parse(value)
        except LlmtrackError as error:
            self.fail(str(error), param, ctx)


def _click_option(parameter: Parameter) -> click.Option:
    choices = tuple(map(str, parameter.option.choices))
    accepted = f"of {', '.join(choices)}" if parameter.many and choices else parameter.bounds
    default_text = f"[default: {format_value(parameter.default)}{'; ' if accepted else ''}{accepted}]"
    switch: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if parameter.kind is bool else {}
    return click.Option(
        [parameter.flag, parameter.name],
        type=Value(parameter),
        default=format_value(parameter.default),
        help=f"{parameter.option.help}  {default_text}",
        metavar=f"[{'|'.join(choices)}]" if choices and not parameter.many else None,
        **switch,
    )
