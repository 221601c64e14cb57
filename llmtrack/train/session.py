"""A training session ready to run: model, data, optimizer and progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llmtrack.engines.options import NO_COMPILE, TorchOptions
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import UsageError, in_words
from llmtrack.models.from_folder import load_folder
from llmtrack.quality import perplexity
from llmtrack.quality.asked import score_as_asked
from llmtrack.quality.encoding import encode_text
from llmtrack.quality.figures import Quality
from llmtrack.spec.options import chosen
from llmtrack.spec.outcome import StepValues
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.serialization import to_json
from llmtrack.spec.task import PerplexityTask, TrainTask, not_asked
from llmtrack.train import checkpoint
from llmtrack.train.data import TrainingBatch, WindowDataset, batches
from llmtrack.train.explain import explain_window
from llmtrack.train.flops import counted_flops_per_token, flops_per_token, peak_flops
from llmtrack.train.loop import Nll, State, autocast_for
from llmtrack.train.split import Split

FORMAT = 1


@dataclass
class Session:
    """A training and its progress.

    Attributes:
        variant: the requested model.
        task: the settings of the training.
        engine: the trained model, as an engine, so that it can score and generate.
        optimizer: of its parameters.
        dataset: windows of the training text.
        split: the corpus in its two parts.
        scoring: how the held-out part is scored.
        autocast: whether the forward pass of training is in bfloat16.
        facts: tracked as params.
        state: progress of the loop.
        run_key: identity of the run, kept when resumed.
        started_at: seconds since the epoch, of the first start.
        history: all steps so far.
        samples: text generated at each evaluation, by its step.
        before: metrics of the held-out part before the first step.
        resumed: whether it continues from a checkpoint.
        warnings: warnings about the corpus.
    """

    variant: Variant
    task: TrainTask
    engine: TorchEngine
    optimizer: torch.optim.Optimizer
    dataset: WindowDataset
    split: Split
    scoring: PerplexityTask
    autocast: bool
    facts: dict[str, Scalar]
    state: State = field(default_factory=State)
    run_key: str = ""
    started_at: float = 0.0
    history: list[StepValues] = field(default_factory=list)
    samples: dict[str, str] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    resumed: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints."""
        return Path(self.task.output)

    def batches(self) -> Iterator[TrainingBatch]:
        """Yield training batches from the current position."""
        task = self.task
        done = self.state.step * task.accumulate * task.batch_size
        return batches(self.dataset, task.batch_size, task.seed, done)

    def score(self, on_batch: Callable[[perplexity.Batch], None] = lambda batch: None) -> Quality:
        """Score the held-out part by the `rolling` protocol; `on_batch` is called after each batch."""
        return score_as_asked(self.engine, self.split.validation, self.scoring, on_batch)

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Return the beginning of the held-out text."""
        return tuple(encode_text(self.engine, self.split.validation[0], self.scoring.bos_rule, keep=tokens).ids)

    def explain(self) -> str:
        """Explain, as text, how the loss of the first window is computed."""
        return explain_window(self.engine.model, self.dataset, self.engine.decode)

    def save(self) -> None:
        """Save a checkpoint; remove those that are neither the newest nor the best."""
        data = {
            "format": FORMAT,
            "asked": asked(self.variant, self.task),
            "run_key": self.run_key,
            "started_at": self.started_at,
            "state": to_json(self.state),
            "before": self.before,
            "samples": self.samples,
            "facts": self.facts,
            "tags": self.engine.info.tags,
            "history": to_json(self.history),
        }
        model, tokenizer = self.engine.model, self.engine.tokenizer
        checkpoint.save(self.folder, self.state.step, model, tokenizer, self.optimizer, data)
        checkpoint.prune(self.folder, {self.state.best_step})

    def load_best(self) -> None:
        """Load the weights with the lowest validation loss into the model."""
        if self.state.best_step not in (0, self.state.step):
            best = checkpoint.path_of(self.folder, self.state.best_step)
            model, _ = load_folder(best, device=self.engine.info.device, dtype=torch.float32)
            self.engine.model.load_state_dict(model.state_dict())
        self.engine.model.eval()

    def flops_per_token(self) -> int:
        """Return the estimated floating-point operations per trained token."""
        config = self.engine.model.config.get_text_config()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return flops_per_token(
            self.engine.info.step_weight_bytes // 4,
            config.num_hidden_layers,
            width * config.num_attention_heads,
            self.task.sequence_length,
        )

    def counted_flops_per_token(self) -> int:
        """Return the floating-point operations per trained token as counted by PyTorch."""
        return round(counted_flops_per_token(self.engine.model, self.task.sequence_length))

    @property
    def compile(self) -> str:
        """The compilation mode of forward pass, loss and backward pass."""
        return chosen(TorchOptions, self.variant.options).compile

    def prepare(self, nll: Nll) -> float:
        """Compile a training step; return the seconds. Gradients and random state are preserved."""
        if self.compile == NO_COMPILE:
            return 0.0
        start = time.perf_counter()
        model, device = self.engine.model.train(), torch.device(self.engine.info.device)
        ids = torch.zeros((self.task.batch_size, self.task.sequence_length), dtype=torch.int64, device=device)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                with autocast_for(device, self.autocast)():
                    total = nll(model, ids, ids)
                total.backward()
            self.engine.synchronize()
        except torch._dynamo.exc.TorchDynamoException as error:
            raise UsageError(
                f"torch.compile cannot compile this model here ({in_words(error)[:200]}): use compile=none"
            ) from error
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    def peak_flops(self) -> float | None:
        """Return the device's peak in FLOP/s, or None if unknown."""
        device = torch.device(self.engine.info.device)
        if device.type != "cuda":
            return None
        return peak_flops(torch.cuda.get_device_name(device), "bfloat16" if self.autocast else "float32")


def asked(variant: Variant, task: TrainTask) -> dict[str, Any]:
    """Return the settings that must be equal to resume a training."""
    settings = {**to_json(variant), **to_json(task)}
    return {name: value for name, value in settings.items() if name not in not_asked(task)}
