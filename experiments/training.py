"""How much does training on a text improve the model on text like it?"""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment, SeriesOf
from llmtrack.models.source import parse_candidates
from llmtrack.report import reading as say
from llmtrack.report.console import make_console
from llmtrack.report.plots import curves_plot, measured, step_plot
from llmtrack.run.main import exit_codes, run_experiment
from llmtrack.run.settings import Settings, optional, options_with
from llmtrack.scenario import KEPT_CHECKPOINTS, SPLITS, STARTS, Scenario, TrainTask, not_asked

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

DEFAULT = Settings(model="synthetic:1m")
OUTPUT_ROOT = Path(".llmtrack") / "training"

# Fresh weights can take much larger steps than trained ones.
SCRATCH_RATE, WEIGHTS_RATE = 3e-3, 5e-5


def build(settings: Settings, task: TrainTask = TrainTask(), name: str = "training") -> Experiment:
    """Return the experiment: one training."""
    scenario = Scenario(name, settings.variant(), task, baseline=True)
    scenario = replace(scenario, task=replace(task, output=output_folder(scenario, task, settings.resume)))
    tracked = {f.name: getattr(task, f.name) for f in fields(task) if f.name not in not_asked(task)}
    return Experiment(
        name="training",
        question="How much does training on a text improve the model on text like it?",
        scenarios=(scenario,),
        plots=plots,
        reading=reading,
        settings=settings.tracked(**tracked),
    )


def output_folder(scenario: Scenario, task: TrainTask, resume: bool) -> str:
    """Return where checkpoints go: what was asked for, or else a new folder; to resume, the newest of this training.

    Raises:
        UsageError: the folder that was asked for holds a training already, which is not to be resumed.
    """
    if task.output:
        folder = Path(task.output).expanduser().absolute()
        if not resume and any(folder.glob("checkpoint-*")):
            raise UsageError(
                f"{folder} holds checkpoints already: add resume=true to go on, or give another output"
            )
        return str(folder)
    root = OUTPUT_ROOT.absolute()
    earlier = sorted(root.glob(f"*-{scenario.scenario_id}")) if resume else []
    if earlier:
        return str(earlier[-1])
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return str(root / f"{stamp}-{secrets.token_hex(2)}-{scenario.scenario_id}")


def plots(runs: pd.DataFrame, series: SeriesOf) -> dict[str, Figure]:
    """Draw the loss of each step and evaluation, and the learning rate."""
    figures = {}
    for _, run in measured(runs, "loss_before").iterrows():
        train, held_out = series(run["run_id"], "train_loss"), series(run["run_id"], "val_loss")
        steps, every = int(run["steps_done"]), int(run["eval_every"])
        figures[f"loss_{run['scenario']}"] = curves_plot(
            {
                "training windows": (list(range(1, len(train) + 1)), train),
                "held-out text": ([min(every * i, steps) for i in range(len(held_out))], held_out),
            },
            title=f"Loss of {run['model_id']} on {run['corpus']} (best after step {run['best_step']:.0f})",
            x_label="step",
            y_label="nats per token",
        )
        figures[f"learning_rate_{run['scenario']}"] = step_plot(
            series(run["run_id"], "learning_rate"), title="Learning rate", x_label="step", y_label=""
        )
    return figures


def reading(runs: pd.DataFrame) -> list[str]:
    """Say what training did to the held-out text, how long it took, and under which convention that is known."""
    lines = []
    for _, run in measured(runs, "loss_before").iterrows():
        change = run["perplexity"] / run["perplexity_before"] - 1
        lines += [
            f"{run['model_id']} on {run['corpus']}: perplexity of the held-out text {run['perplexity_before']:.3f} before, "
            f"{run['perplexity']:.3f} after ({change:+.1%}), by the checkpoint after step {run['best_step']:.0f} of "
            f"{run['steps_done']:.0f}{_early(run)}.",
            f"Trained on {run['tokens_trained']:,.0f} tokens in {run['train_seconds']:.0f} s of steps, "
            f"{run['train_tokens_per_sec']:,.0f} tokens/s (median){_mfu(run)}; last training loss {run['train_loss']:.4f}.",
            f"Convention: protocol rolling, {run['tokens_scored']:,.0f} held-out tokens (split by {run['split']}), windows of "
            f"{run['max_length']}; the best checkpoint was chosen on the same text, so expect a little less on other text.",
            f"Use it: --model runs:/{run['run_id']}/checkpoint" if run["log_checkpoint"] != "none" else "",
        ]
        if change >= 0:
            lines.append("Training did not help: try a smaller learning_rate, fewer steps, or more text.")
    return [*filter(None, lines), *say.doubts(runs)] or ["Nothing was trained."]


def _early(run: pd.Series) -> str:
    return (
        ", where it was no longer getting better"
        if say.has(run, "ended") and run["ended"] == "stopped_early"
        else ""
    )


def _mfu(run: pd.Series) -> str:
    return f", MFU {run['mfu']:.1%}" if say.has(run, "mfu") else ""


def _options(command: Any) -> Any:
    default = TrainTask()
    options = [
        click.option(
            "--corpus",
            default=default.corpus,
            show_default=True,
            help="builtin, pydoc, or a .txt or .jsonl file.",
        ),
        click.option(
            "--start",
            type=click.Choice(STARTS),
            default=default.start,
            show_default=True,
            help="The model's weights, or fresh ones in the shape of a synthetic: preset, which auto takes to be meant by one.",
        ),
        click.option(
            "--split",
            type=click.Choice(SPLITS),
            default=default.split,
            show_default=True,
            help="Hold out whole documents, or the end of the text.",
        ),
        _number(
            "--validation-share",
            click.FloatRange(0, 1, True, True),
            default,
            "Share of the text that is held out.",
        ),
        _number(
            "--validation-tokens",
            click.IntRange(min=0),
            default,
            "Held-out tokens that are scored at most; 0: all.",
        ),
        _number("--sequence-length", click.IntRange(min=1), default, "Tokens that a window reads."),
        _number(
            "--window-stride", click.IntRange(min=0), default, "Tokens between windows; 0: sequence-length."
        ),
        _number("--batch-size", click.IntRange(min=1), default, "Windows per forward pass."),
        _number("--accumulate", click.IntRange(min=1), default, "Forward passes per step."),
        _number("--steps", click.IntRange(min=1), default, "Optimizer steps."),
        click.option(
            "--learning-rate",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            help=f"The highest; 0: {SCRATCH_RATE:g} from scratch, {WEIGHTS_RATE:g} otherwise.",
        ),
        _number(
            "--warmup-steps", click.IntRange(min=0), default, "Steps until the learning rate is reached."
        ),
        _number("--weight-decay", click.FloatRange(min=0), default, "Of AdamW, on matrices."),
        _number(
            "--clip-norm", click.FloatRange(min=0), default, "Norm of the gradient at most; 0: as it comes."
        ),
        _number("--eval-every", click.IntRange(min=1), default, "Steps between evaluations."),
        _number(
            "--patience",
            click.IntRange(min=0),
            default,
            "Evaluations without a better one that end it; 0: never.",
        ),
        _number("--seed", click.IntRange(min=0), default, "Of the order, of fresh weights and of dropout."),
        _number(
            "--sample-tokens", click.IntRange(min=0), default, "Tokens generated at each evaluation; 0: none."
        ),
        click.option(
            "--log-checkpoint",
            type=click.Choice(KEPT_CHECKPOINTS),
            default=default.log_checkpoint,
            show_default=True,
            help="Keep the best checkpoint in MLflow as files, as an MLflow model beside them, or only in the output folder.",
        ),
        click.option(
            "--explain",
            type=bool,
            default=False,
            is_flag=False,
            flag_value=True,
            show_default=True,
            help="Print how the loss of one window comes about.",
        ),
        click.option(
            "--output",
            default="none",
            show_default=True,
            help="Folder of the checkpoints; none: one in .llmtrack/training.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _number(name: str, kind: click.ParamType, default: TrainTask, text: str) -> Any:
    value = getattr(default, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=kind, default=value, show_default=True, help=text)


@click.command(help=__doc__)
@options_with(DEFAULT)
@_options
def main(**options: Any) -> None:
    """Run the experiment from the command line."""
    own = {field.name: options.pop(field.name) for field in fields(TrainTask)}
    settings = Settings(**options)
    with exit_codes(make_console()):
        experiment = build(settings, task_of(settings.model, **own))
    run_experiment(experiment, settings)


def task_of(model: str, learning_rate: float, output: str, **own: Any) -> TrainTask:
    """Return the task that the options ask for."""
    scratch = own["start"] == "scratch" or (
        own["start"] == "auto" and parse_candidates(model)[0].kind == "synthetic"
    )
    rate = learning_rate or (SCRATCH_RATE if scratch else WEIGHTS_RATE)
    return TrainTask(learning_rate=rate, output=optional(output) or "", **own)


if __name__ == "__main__":
    main()
