"""Run every experiment on this model and report all tracked runs together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from rich.console import Console

from experiments import declarations, quantization
from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment
from llmtrack.report.terminal import make_console, print_line
from llmtrack.run.command import ConfigCommand
from llmtrack.run.executors.executor import Executor
from llmtrack.run.main import Performed, open_executor, open_executors, open_tracker, print_hardware, print_location
from llmtrack.run.settings import Settings
from llmtrack.run.study.suite_cache import MEASURE, MODES
from llmtrack.run.suite import SuiteResult, run_suite
from llmtrack.spec.options import Option, parameters, tracked_settings
from llmtrack.spec.parameter import format_value
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracking.write.tracker import Tracker

QUESTION = "How should this model run on this machine?"
MORE = (
    "All of these, each as its own study, in one table, with takeaways and a report (`report.html`); `-P quick=true` for a "
    "first look, `-P focus=quantization` for that question."
)
DECLARED_BY_NAME = declarations()
NAMES = tuple(name for name, declared in DECLARED_BY_NAME.items() if declared.position is not None)
ALL = "all"
# Experiments of each focus, in this order.
FOCUSES: dict[str, tuple[str, ...]] = {
    "quantization": ("baseline", "quantization", "cache_padding", "batching", "perplexity", "edge_prompts")
}
QUICK_NEW_TOKENS, QUICK_SECONDS = 16, 30.0


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the suite: those shared with an experiment are passed on to it."""

    experiments: Annotated[tuple[str, ...], Option("Experiments to run, in this order.", choices=(ALL, *NAMES))] = (
        ALL,
    )
    focus: Annotated[
        str | None,
        Option(
            "Run the experiments of one question, with edge prompts on the best variant found.", choices=tuple(FOCUSES)
        ),
    ] = None
    same: Annotated[
        str,
        Option(
            "Scenarios shared by experiments: measure them in each, reuse one run, or pool the repeats.", choices=MODES
        ),
    ] = MEASURE
    quick: Annotated[bool, Option("A first look in minutes: fewer tokens, repeats and lengths.")] = False


def chosen_names(config: Config) -> tuple[str, ...]:
    """Return the experiments to run: those named, those of the focus, or else all (in a quick suite, all quick ones).

    Raises:
        UsageError: both are given, or a setting changes none of them.
    """
    names = _names(config)
    configs = [_config(name, config) for name in names]
    for parameter in parameters(Settings):
        value = getattr(config, parameter.name)
        # An experiment that compares several values compares only this one.
        used = any(getattr(own, parameter.name, None) in (value, (value,)) for own in configs)
        if value != parameter.default and not used:
            raise UsageError(
                f"{parameter.name} {format_value(value)} would change nothing in {', '.join(names)}: leave it out, or run others"
            )
    return names


def _names(config: Config) -> tuple[str, ...]:
    named = ALL not in config.experiments
    if config.focus is not None:
        if named:
            raise UsageError("give either experiments or a focus: a focus chooses its experiments")
        return FOCUSES[config.focus]
    if named:
        return config.experiments
    declared = [DECLARED_BY_NAME[name] for name in NAMES]
    return tuple(
        experiment.name
        for experiment in declared
        if experiment.applies() and (experiment.first_look or not config.quick)
    )


def quicker(config: Config) -> Config:
    """Return a smaller config; values that are already smaller stay."""
    return replace(
        config,
        max_new_tokens=min(config.max_new_tokens, QUICK_NEW_TOKENS),
        warmup=min(config.warmup, 1),
        min_seconds=0.0,
        max_seconds=min(config.max_seconds, QUICK_SECONDS),
    )


def experiments_of(names: Sequence[str], config: Config) -> list[Experiment]:
    """Build the named experiments, in this order; if quick, the smaller ones.

    With a focus on quantization, the edge prompts run on the best quantized variant, once it is known.
    """
    built = [_build(name, config) for name in names]
    if config.focus != "quantization":
        return built
    variants = {
        scenario.name: scenario.variant
        for experiment in built
        if experiment.name == "quantization"
        for scenario in experiment.scenarios
    }
    return [
        replace(experiment, follow=partial(quantization.on_best, experiment, variants))
        if experiment.name == "edge_prompts"
        else experiment
        for experiment in built
    ]


def quick_remark(names: Sequence[str]) -> str:
    """Describe how the quick suite differs from the full one."""
    smaller = []
    for name in names:
        declared = DECLARED_BY_NAME[name]
        full = _config(name, Config())
        quick = declared.quick(full)
        changes = [
            f"{parameter.name} {format_value(getattr(quick, parameter.name))}"
            for parameter in parameters(declared.config)
            if getattr(quick, parameter.name) != getattr(full, parameter.name)
        ]
        smaller += [f"{name} with {', '.join(changes)}"] if changes else []
    return (
        f"Quick: at most {QUICK_NEW_TOKENS} new tokens, and the minimum number of repeats for significance{'; ' if smaller else ''}{'; '.join(smaller)}. "
        "A first look: decide by a run without quick."
    )


def _config(name: str, config: Config) -> Any:
    """Return the config of an experiment: the suite's settings where set, otherwise the experiment's defaults."""
    declared = DECLARED_BY_NAME[name]
    names = [parameter.name for parameter in parameters(Settings) if hasattr(declared.config, parameter.name)]
    settings = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(Config, name)}
    return declared.in_suite(declared.config(**settings))


def _build(name: str, config: Config) -> Experiment:
    declared = DECLARED_BY_NAME[name]
    if not config.quick:
        return declared.experiment(_config(name, config))
    experiment = declared.experiment(declared.quick(_config(name, quicker(config))))
    return replace(experiment, scenarios=tuple(map(_with_fewest_repeats, experiment.scenarios)))


def _with_fewest_repeats(scenario: Scenario) -> Scenario:
    """Limit a scenario to the minimum number of repeats: with fewer, no difference could be significant."""
    repeat = replace(scenario.repeat, max_repeats=scenario.repeat.min_repeats)
    return replace(scenario, repeat=repeat) if isinstance(scenario.task, GenerateTask) else scenario


def _measure(
    config: Config, chosen: Sequence[str], tracker: Tracker, executor: Executor, console: Console
) -> SuiteResult:
    return run_suite(
        experiments_of(chosen, config),
        question=QUESTION,
        settings=tracked_settings(quicker(config) if config.quick else config, experiments=chosen),
        tracker=tracker,
        executor=executor,
        console=console,
        remarks=(quick_remark(chosen),) if config.quick else (),
        resume=config.resume,
        same=config.same,
    )


def perform(config: Config, console: Console) -> Performed:
    """Run the suite in one place, and return the result."""
    chosen = chosen_names(config)
    with open_executor(config) as executor:
        tracker = open_tracker(config)
        return Performed(tracker, _measure(config, chosen, tracker, executor, console))


def run(config: Config) -> None:
    """Run the suite and exit with its code."""
    console = make_console(outlive=True)
    chosen = chosen_names(config)  # before workers start, as it may refuse the settings
    codes = []
    with open_executors(config) as executors:
        tracker = open_tracker(config)
        for executor in executors:
            print_hardware(console, executor, executors)
            result = _measure(config, chosen, tracker, executor, console)
            print_location(console, tracker, result.study)
            if not tracker.offline:
                print_line(
                    console, f"Next: llmtrack recommend --study {result.study.study_id} --max-perplexity-increase 1%"
                )
            codes.append(result.exit_code)
    sys.exit(max(codes))


main = ConfigCommand("suite", Config, run, help=__doc__)

if __name__ == "__main__":
    main()
