"""Run every experiment on this model and report all tracked runs together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
    quantization,
    training,
)
from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment
from llmtrack.report.console import make_console
from llmtrack.run.main import exit_codes, open_executor, open_tracker, say_where
from llmtrack.run.settings import NONE, CommaList, Settings, shared_options
from llmtrack.run.suite import run_suite
from llmtrack.scenario import PerplexityTask, TrainTask

QUESTION = "How should this model run on this machine?"

Builder = Callable[[Settings], Experiment]


def _perplexity(settings: Settings, task: PerplexityTask = PerplexityTask()) -> Experiment:
    # Every precision that is timed is scored too, so that what its speed costs is known.
    return perplexity.build(settings, task, tuple(dict.fromkeys((settings.dtype, *precision.DTYPES))))


def _training(
    settings: Settings, task: TrainTask | None = None, model: str = training.DEFAULT.model
) -> Experiment:
    # From scratch, whatever the suite's model is: to fine-tune that one takes long, and is a question of its own.
    fresh = replace(settings, model=model, revision=NONE, backend="torch")
    return training.build(fresh, task or TrainTask(learning_rate=training.SCRATCH_RATE))


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
    "quantization": quantization.build,
    "training": _training,
}

ALL, NO_FOCUS = "all", "none"
# What a focus runs instead of everything, in this order.
FOCUSES: dict[str, tuple[str, ...]] = {
    "quantization": ("baseline", "quantization", "cache_padding", "batching", "perplexity", "edge_prompts"),
}
# Its first export and quantization take longer than all the rest of a first look.
NOT_QUICK = ("quantization",)

QUICK_NEW_TOKENS, QUICK_REPEATS, QUICK_SECONDS = 16, 3, 8.0
QUICK_LENGTHS = (16, 128)
QUICK_OUTPUTS = (4, 16)
QUICK_SIZES = (1, 4)
QUICK_PROMPTS = ("plain", "one_token", "empty", "very_long", "code", "emoji_combining")
QUICK_LONG_PROMPT = 256
QUICK_DOCUMENT = 64
QUICK_RECIPES = (
    "torch/float32",
    "torch/bfloat16",
    "onnx/float32",
    "onnx/int8-weight-only",
    "onnx/int8-mixed",
)
QUICK_MODEL = "synthetic:tiny"
QUICK_TRAINING = TrainTask(
    corpus="builtin",
    steps=30,
    eval_every=15,
    batch_size=4,
    sequence_length=64,
    learning_rate=training.SCRATCH_RATE,
    warmup_steps=5,
)
QUICK_PROMPT, QUICK_COMPARED, QUICK_CALIBRATION = 128, 256, 512
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
    "quantization": lambda settings: quantization.build(
        settings,
        QUICK_RECIPES,
        quantization.Options(calibration_tokens=QUICK_CALIBRATION),
        PerplexityTask(max_length=QUICK_DOCUMENT),
        QUICK_PROMPT,
        QUICK_COMPARED,
    ),
    "training": lambda settings: _training(settings, QUICK_TRAINING, QUICK_MODEL),
}

QUICK_REMARK = (
    f"Quick: at most {QUICK_NEW_TOKENS} new tokens and {QUICK_REPEATS} repeats; it leaves out all prompt lengths but "
    f"{_list(QUICK_LENGTHS)}, output lengths but {_list(QUICK_OUTPUTS)}, batch sizes but {_list(QUICK_SIZES)}, edge prompts but "
    f"{_list(QUICK_PROMPTS)} (of at most {QUICK_LONG_PROMPT} tokens), and the text after the first {QUICK_DOCUMENT} tokens "
    "of each scored document; of quantization, which runs only if it is named (or by its focus), all recipes but "
    f"{_list(QUICK_RECIPES[1:])}; of training, all but {QUICK_TRAINING.steps} steps of {QUICK_MODEL}. A first look: decide by a run without quick."
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


def chosen_names(names: Sequence[str], focus: str = NO_FOCUS, quick: bool = False) -> tuple[str, ...]:
    """Return the experiments to run: those named, or those of the focus, or else all (of a quick suite, all that are quick).

    Raises:
        UsageError: both are given.
    """
    if focus != NO_FOCUS:
        if names:
            raise UsageError("give either experiments or a focus: a focus chooses its experiments")
        return FOCUSES[focus]
    return tuple(names) or tuple(name for name in BUILDERS if not (quick and name in NOT_QUICK))


def experiments_of(
    names: Sequence[str], settings: Settings, quick: bool = False, focus: str = NO_FOCUS
) -> list[Experiment]:
    """Return the experiments of these names, in this order; if quick, the smaller ones.

    With a focus on quantization the edge prompts are put to the best quantized variant, once it is known.
    """
    experiments = _built(names, settings, quick)
    if focus != "quantization":
        return experiments
    variants = {
        each.name: each.variant for e in experiments if e.name == "quantization" for each in e.scenarios
    }
    return [
        replace(each, follow=partial(quantization.on_best, each, variants))
        if each.name == "edge_prompts"
        else each
        for each in experiments
    ]


def _built(names: Sequence[str], settings: Settings, quick: bool) -> list[Experiment]:
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
    default=ALL,
    show_default=True,
    help=f"Experiments to run, in this order, of {', '.join(BUILDERS)}.",
)
@click.option(
    "--focus",
    type=click.Choice([NO_FOCUS, *FOCUSES]),
    default=NO_FOCUS,
    show_default=True,
    help="Run what belongs to one question, edge prompts on the best variant that it finds.",
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
def main(names: str, focus: str, quick: bool, **shared: Any) -> None:
    """Run the suite from the command line."""
    settings = Settings(**shared)
    console = make_console()
    chosen = () if names.strip().lower() == ALL else CommaList(click.Choice(list(BUILDERS)))(names)
    with exit_codes(console), open_executor(settings) as executor:
        chosen = chosen_names(chosen, focus, quick)
        tracker = open_tracker(settings)
        result = run_suite(
            experiments_of(chosen, settings, quick, focus),
            question=QUESTION,
            settings=(quicker(settings) if quick else settings).tracked(
                experiments=",".join(chosen), focus=focus, quick=quick
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
