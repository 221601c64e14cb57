"""How much does training on a text improve the model on text like it?"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from llmtrack.decide.differences import build_difference, judge
from llmtrack.errors import UsageError
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.models.source import parse_candidates
from llmtrack.report.plots.charts import curves_plot, step_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.executors.ray.files import HOME
from llmtrack.run.settings import EngineOptions, RunOptions
from llmtrack.spec.options import Option, config_from
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import TrainTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTPUT_ROOT = Path(".llmtrack") / "training"

# Fresh weights tolerate much larger steps than trained ones.
SCRATCH_RATE, WEIGHTS_RATE = 3e-3, 5e-5


@dataclass(frozen=True)
class Config(TrainTask, EngineOptions, RunOptions):
    """Settings of the experiment."""

    model: Annotated[str, Option("Model, or comma list of candidates.", min=1)] = "synthetic:1m"
    learning_rate: Annotated[
        float, Option(f"Peak learning rate; 0: {SCRATCH_RATE:g} from scratch, {WEIGHTS_RATE:g} otherwise.", min=0)
    ] = 0.0


def build(config: Config) -> Experiment:
    """Return the experiment: one training."""
    task = task_of(config)
    scenario = Scenario("training", config.variant(), task, baseline=True)
    scenario = replace(scenario, task=replace(task, output=output_folder(scenario, task, config.resume)))
    return DECLARED.asking(config, (scenario,), learning_rate=task.learning_rate)


def task_of(config: Config) -> TrainTask:
    """Return the training task; the default learning rate depends on the initial weights."""
    untrained = config.start == "auto" and parse_candidates(config.model)[0].kind == "synthetic"
    rate = config.learning_rate or (SCRATCH_RATE if config.start == "scratch" or untrained else WEIGHTS_RATE)
    return config_from(TrainTask, config, learning_rate=rate)


def output_folder(scenario: Scenario, task: TrainTask, resume: bool) -> str:
    """Return the checkpoint folder: the requested one, or a new one; to resume, the newest of this training.

    Raises:
        UsageError: the requested folder already holds a training that is not to be resumed.
    """
    if task.output:
        folder = Path(os.path.expanduser(task.output)).absolute()
        if not resume and (any(folder.glob("checkpoint-*")) or (folder / HOME).exists()):
            raise UsageError(f"{folder} holds checkpoints already: add resume=true to go on, or give another output")
        return str(folder)
    root = OUTPUT_ROOT.absolute()
    earlier = sorted(root.glob(f"*-{scenario.scenario_id}")) if resume else []
    if earlier:
        return str(earlier[-1])
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return str(root / f"{stamp}-{secrets.token_hex(2)}-{scenario.scenario_id}")


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw the loss of each step and evaluation, and the learning rate."""
    figures = {}
    for run in runs.measured("loss_before"):
        train_losses, val_losses = series(run.run_id, "train_loss"), series(run.run_id, "val_loss")
        steps, every = int(run.metrics["steps_done"]), int(run.params["eval_every"])
        figures[f"loss_{run.scenario}"] = curves_plot(
            {
                "training windows": (list(range(1, len(train_losses) + 1)), train_losses),
                "held-out text": ([min(every * i, steps) for i in range(len(val_losses))], val_losses),
            },
            title=f"Loss of {run.text('model_id')} on {run.text('corpus')} (best after step {run.metrics['best_step']:.0f})",
            x_label="step",
            y_label="loss (nats per token)",
        )
        figures[f"learning_rate_{run.scenario}"] = step_plot(
            series(run.run_id, "learning_rate"), title="Learning rate", x_label="step", y_label="learning rate"
        )
    return figures


def reading(runs: Runs) -> list[str]:
    """Summarize the effect of training on the held-out text, its duration, and the scoring convention."""
    lines = []
    for run in runs.measured("loss_before"):
        change = judge(build_difference("perplexity", run.metrics["perplexity_before"], run.metrics["perplexity"]))
        lines += [
            f"{run.text('model_id')} on {run.text('corpus')}: perplexity of the held-out text {run.metrics['perplexity_before']:.3f} before, "
            f"{run.metrics['perplexity']:.3f} after ({change.words}), by the checkpoint after step {run.metrics['best_step']:.0f} of "
            f"{run.metrics['steps_done']:.0f}{_early(run)}.",
            f"Trained on {run.metrics['tokens_trained']:,.0f} tokens in {run.metrics['train_seconds']:.0f} s of steps, "
            f"{run.metrics['train_tokens_per_sec']:,.0f} tokens/s (median){_mfu(run)}; last training loss {run.metrics['train_loss']:.4f}.",
            f"Convention: protocol rolling, {run.metrics['tokens_scored']:,.0f} held-out tokens (split by {run.text('split')}), windows of "
            f"{run.params['max_length']}; the best checkpoint was chosen on the same text, so expect slightly worse results on other text.",
            f"Use it: --model runs:/{run.run_id}/checkpoint" if run.text("log_checkpoint") not in ("", "none") else "",
        ]
        if change.verdict != "better":
            lines.append(
                f"Training did not help ({change.words}): try a smaller learning_rate, fewer steps, or more text."
            )
    return [*filter(None, lines), *say.doubts(runs)] or ["Nothing was trained."]


def _early(run: Run) -> str:
    return ", as it no longer improved" if run.has("ended") and run.params["ended"] == "stopped_early" else ""


def _mfu(run: Run) -> str:
    return f", MFU {run.metrics['mfu']:.1%}" if run.has("mfu") else ""


def quick(config: Config) -> Config:
    """Return a smaller config for a first look."""
    return replace(
        config,
        model="synthetic:tiny",
        corpus="builtin",
        steps=30,
        eval_every=15,
        batch_size=4,
        sequence_length=64,
        warmup_steps=5,
    )


DECLARED = Declaration(
    "training",
    "How much does training on a text improve the model on text like it?",
    Config,
    build,
    plots,
    reading,
    position=9,
    # From scratch, whatever the suite's model is: fine-tuning takes long and is a separate question.
    in_suite=lambda config: replace(config, model=Config.model, revision=None, backend=Config.backend),
    quick=quick,
    more="([docs/training.md](docs/training.md))",
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
