"""Run every experiment on this model and report all tracked runs together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from experiments import (
    baseline,
    batching,
    cache_padding,
    edge_prompts,
    perplexity,
    precision,
    prompt_length,
)
from llmtrack.experiment import Experiment
from llmtrack.report.console import make_console
from llmtrack.run.main import exit_codes, open_executor, open_tracker, say_where
from llmtrack.run.settings import CommaList, Settings, shared_options
from llmtrack.run.suite import run_suite
from llmtrack.scenario import PerplexityTask

QUESTION = "How should this model run on this machine?"

Builder = Callable[[Settings], Experiment]


def _perplexity(settings: Settings, task: PerplexityTask = PerplexityTask()) -> Experiment:
    # Every precision that is timed is scored too, so that what its speed costs is known.
    return perplexity.build(settings, task, tuple(dict.fromkeys((settings.dtype, *precision.DTYPES))))


def _list(values: Sequence[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}"


def _at_most(tokens: int, settings: Settings) -> Settings:
    return replace(settings, max_new_tokens=min(settings.max_new_tokens, tokens))


# In the order that loads a model least often: what wants one precision only comes first.
BUILDERS: dict[str, Builder] = {
    "baseline": baseline.build,
    "prompt_length": prompt_length.build,
    "cache_padding": cache_padding.build,
    "batching": batching.build,
    "edge_prompts": edge_prompts.build,
    "precision": precision.build,
    "perplexity": _perplexity,
}

QUICK_NEW_TOKENS, QUICK_REPEATS, QUICK_SECONDS = 16, 3, 8.0
QUICK_LENGTHS = (16, 128)
QUICK_OUTPUTS = (4, 16)
QUICK_SIZES = (1, 4)
QUICK_PROMPTS = ("plain", "one_token", "empty", "very_long", "code", "emoji_combining")
QUICK_LONG_PROMPT = 256
QUICK_DOCUMENT = 64
# Experiments of many scenarios, or of many prompts in each, generate less.
QUICK_FEW_TOKENS, QUICK_LEAST_TOKENS = 8, 4

QUICK_BUILDERS: dict[str, Builder] = {
    "prompt_length": lambda settings: prompt_length.build(settings, QUICK_LENGTHS),
    "cache_padding": lambda settings: cache_padding.build(
        _at_most(QUICK_LEAST_TOKENS, settings), QUICK_OUTPUTS
    ),
    "batching": lambda settings: batching.build(_at_most(QUICK_FEW_TOKENS, settings), QUICK_SIZES),
    "edge_prompts": lambda settings: edge_prompts.build(
        _at_most(QUICK_FEW_TOKENS, settings), QUICK_PROMPTS, QUICK_LONG_PROMPT
    ),
    "perplexity": lambda settings: _perplexity(settings, PerplexityTask(max_length=QUICK_DOCUMENT)),
}

QUICK_REMARK = (
    f"Quick: at most {QUICK_NEW_TOKENS} new tokens and {QUICK_REPEATS} repeats; it leaves out all prompt lengths but "
    f"{_list(QUICK_LENGTHS)}, output lengths but {_list(QUICK_OUTPUTS)}, batch sizes but {_list(QUICK_SIZES)}, edge prompts but "
    f"{_list(QUICK_PROMPTS)} (of at most {QUICK_LONG_PROMPT} tokens), and the text after the first {QUICK_DOCUMENT} tokens "
    "of each scored document. A first look: decide by a run without quick."
)


def quicker(settings: Settings) -> Settings:
    """Return settings that ask for less; what asks for less already stays as it is."""
    return replace(
        settings,
        max_new_tokens=min(settings.max_new_tokens, QUICK_NEW_TOKENS),
        warmup=min(settings.warmup, 1),
        min_repeats=min(settings.min_repeats, 2),
        min_seconds=0.0,
        max_seconds=min(settings.max_seconds, QUICK_SECONDS),
    )


def experiments_of(names: Sequence[str], settings: Settings, quick: bool = False) -> list[Experiment]:
    """Return the experiments of these names, in this order; if quick, the smaller ones."""
    if not quick:
        return [BUILDERS[name](settings) for name in names]
    builders = BUILDERS | QUICK_BUILDERS
    return [_few_repeats(builders[name](quicker(settings))) for name in names]


def _few_repeats(experiment: Experiment) -> Experiment:
    scenarios = (
        replace(each, repeat=replace(each.repeat, max_repeats=min(each.repeat.max_repeats, QUICK_REPEATS)))
        for each in experiment.scenarios
    )
    return replace(experiment, scenarios=tuple(scenarios))


@click.command(help=__doc__)
@shared_options
@click.option(
    "--experiments",
    "names",
    type=CommaList(click.Choice(list(BUILDERS))),
    default=",".join(BUILDERS),
    show_default=True,
    help="Experiments to run, in this order.",
)
@click.option(
    "--quick",
    type=bool,
    default=False,
    is_flag=False,
    flag_value=True,
    show_default=True,
    help="A first look in minutes: fewer tokens, repeats and lengths.",
)
def main(names: tuple[str, ...], quick: bool, **shared: Any) -> None:
    """Run the suite from the command line."""
    settings = Settings(**shared)
    console = make_console()
    with exit_codes(console), open_executor(settings) as executor:
        tracker = open_tracker(settings)
        result = run_suite(
            experiments_of(names, settings, quick),
            question=QUESTION,
            settings=(quicker(settings) if quick else settings).tracked(
                experiments=",".join(names), quick=quick
            ),
            tracker=tracker,
            executor=executor,
            console=console,
            remarks=(QUICK_REMARK,) if quick else (),
            resume=settings.resume,
        )
        say_where(console, tracker)
        sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
