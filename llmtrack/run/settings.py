"""The settings that every experiment shares, as command-line options and as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import click

from llmtrack.devices import canonical_dtype
from llmtrack.errors import LlmtrackError
from llmtrack.scenario import DEFAULT_MODEL, RepeatPolicy, Scalar, Variant

NONE = "none"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """What every experiment takes.

    Attributes:
        model: one model or a comma list of candidates.
        revision: git revision of a hub model, or `none`.
        backend: name of the engine.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `float32`, `float16` or `bfloat16`.
        max_new_tokens: new tokens per row of timed calls.
        warmup: calls that are made first and not counted.
        min_repeats: counted calls at least.
        min_seconds: seconds of counted calls at least.
        max_seconds: cap on the seconds of counted calls of a scenario.
        resume: take over finished runs of the same scenario, work and machine instead of measuring again.
        executor: `process` (one worker per variant) or `inline`.
        tracking_uri: MLflow tracking URI, or `none` for the environment's or a sqlite file here.
        experiment_name: MLflow experiment, or `none` for the environment's or `llmtrack`.
    """

    model: str = DEFAULT_MODEL
    revision: str = NONE
    backend: str = "torch"
    device: str = "auto"
    dtype: str = "float32"
    max_new_tokens: int = 32
    warmup: int = 1
    min_repeats: int = 5
    min_seconds: float = 1.0
    max_seconds: float = 60.0
    resume: bool = False
    executor: str = "process"
    tracking_uri: str = NONE
    experiment_name: str = NONE

    def variant(self, **changes: str) -> Variant:
        """Return the variant that these settings ask for."""
        asked = Variant(self.model, optional(self.revision), self.backend, self.device, self.dtype)
        return Variant(**(asdict(asked) | changes))

    def repeat(self) -> RepeatPolicy:
        """Return the repeat policy that these settings ask for."""
        return RepeatPolicy(self.warmup, self.min_repeats, self.min_seconds, self.max_seconds)

    def tracked(self, **more: Scalar) -> dict[str, Scalar]:
        """Return the settings to track with a study; the tracking URI may hold credentials and is left out."""
        return {name: value for name, value in asdict(self).items() if name != "tracking_uri"} | more


def optional(text: str) -> str | None:
    """Return None for `none`: MLproject parameters cannot be empty."""
    return None if text.strip().lower() in ("", NONE) else text


class Dtype(click.ParamType):
    """A dtype's name or alias."""

    name = "dtype"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the canonical name."""
        try:
            return canonical_dtype(value)
        except LlmtrackError as error:
            self.fail(str(error), param, ctx)


class CommaList(click.ParamType):
    """A comma list of values of another type; returns a tuple without repeats, in order."""

    def __init__(self, item: click.ParamType) -> None:
        self.item = item
        self.name = f"{item.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Convert each part of the list."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        if not parts:
            self.fail("give at least one value", param, ctx)
        return tuple(dict.fromkeys(self.item.convert(part, param, ctx) for part in parts))


def shared_options(command: F) -> F:
    """Add the options of `Settings` to a command; they reach it as keyword arguments of the same names."""
    return options_with(Settings())(command)


def options_with(default: Settings) -> Callable[[F], F]:
    """Return `shared_options` with these defaults."""
    return lambda command: _add_options(command, default)


def _add_options(command: F, default: Settings) -> F:
    options = [
        click.option(
            "--model", default=default.model, show_default=True, help="Model, or comma list of candidates."
        ),
        click.option(
            "--revision", default=default.revision, show_default=True, help="Revision of a hub model."
        ),
        click.option("--backend", default=default.backend, show_default=True, help="Engine."),
        click.option(
            "--device", default=default.device, show_default=True, help="auto, cpu, cuda or cuda:N."
        ),
        click.option("--dtype", type=Dtype(), default=default.dtype, show_default=True, help="Precision."),
        click.option(
            "--max-new-tokens",
            type=click.IntRange(min=1),
            default=default.max_new_tokens,
            show_default=True,
            help="New tokens per row.",
        ),
        click.option(
            "--warmup",
            type=click.IntRange(min=0),
            default=default.warmup,
            show_default=True,
            help="Calls made first and not counted.",
        ),
        click.option(
            "--min-repeats",
            type=click.IntRange(min=1),
            default=default.min_repeats,
            show_default=True,
            help="Counted calls at least.",
        ),
        click.option(
            "--min-seconds",
            type=click.FloatRange(min=0),
            default=default.min_seconds,
            show_default=True,
            help="Seconds of counted calls at least.",
        ),
        click.option(
            "--max-seconds",
            type=click.FloatRange(min=0, min_open=True),
            default=default.max_seconds,
            show_default=True,
            help="Cap on the seconds of counted calls per scenario.",
        ),
        click.option(
            "--resume",
            type=bool,
            default=default.resume,
            show_default=True,
            help="Skip scenarios that are measured already, and report them all.",
        ),
        click.option(
            "--executor",
            type=click.Choice(["process", "inline"]),
            default=default.executor,
            show_default=True,
            help="Measure in a worker process per variant, or in this one.",
        ),
        click.option(
            "--tracking-uri",
            default=default.tracking_uri,
            show_default=True,
            help="MLflow tracking URI; none: MLFLOW_TRACKING_URI, or mlflow.db in this folder.",
        ),
        click.option(
            "--experiment-name",
            default=default.experiment_name,
            show_default=True,
            help="MLflow experiment; none: MLFLOW_EXPERIMENT_NAME, or llmtrack.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command
