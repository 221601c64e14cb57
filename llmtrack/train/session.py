"""Training sessions: open a new one, or resume one from a checkpoint; model, data, optimizer and progress."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from llmtrack.devices import require_tried, resolve_device, resolve_dtype
from llmtrack.engines.options import NO_COMPILE, DevicesOption, TorchOptions
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.engines.torch.pytorch import load_whole as load_engine
from llmtrack.errors import UsageError, in_words
from llmtrack.measure.memory import check_batch
from llmtrack.models.load import clean_generation, load_folder
from llmtrack.models.source import parse_candidates
from llmtrack.quality.corpora import Corpus, load_corpus
from llmtrack.quality.encoding import encode_text, lost_warning, unknown_warning
from llmtrack.quality.metrics import Quality
from llmtrack.quality.perplexity import SEPARATOR, Batch, score_texts
from llmtrack.spec.options import chosen, config_from
from llmtrack.spec.outcome import StepValues
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.serialization import from_json, to_json
from llmtrack.spec.task import PerplexityTask, TrainTask, not_asked
from llmtrack.train import checkpoint
from llmtrack.train.data import Split, TrainingBatch, WindowDataset, batches, plan_training_windows, split_texts
from llmtrack.train.explain import explain_window
from llmtrack.train.flops import counted_flops_per_token, flops_per_token, peak_flops
from llmtrack.train.loop import Nll, State, autocast_for, make_optimizer
from llmtrack.train.scratch import fresh_engine

FORMAT = 1
"""Version of the data in a checkpoint."""


@dataclass
class Session:
    """A training and its progress.

    Attributes:
        variant: as requested.
        engine: the model in training, which can also score and generate.
        dataset: windows of the training text.
        scoring: how the held-out text is scored.
        autocast: whether the forward pass of training is in bfloat16.
        facts: tracked as params.
        run_key: identity of the run, kept when resumed.
        started_at: seconds since the epoch, of the first start.
        samples: text generated at each evaluation, by its step.
        before: metrics of the held-out text before the first step.
        resumed: whether it continues from a checkpoint.
        warnings: about the corpus.
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

    def score(self, on_batch: Callable[[Batch], None] = lambda batch: None) -> Quality:
        """Score the held-out text by the `rolling` protocol."""
        return score_texts(self.engine, self.split.validation, self.scoring, on_batch)

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
            "asked": _resume_settings(self.variant, self.task),
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
        """Estimate the floating-point operations per trained token."""
        config = self.engine.model.config.get_text_config()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return flops_per_token(
            self.engine.info.step_weight_bytes // 4,
            config.num_hidden_layers,
            width * config.num_attention_heads,
            self.task.sequence_length,
        )

    def counted_flops_per_token(self) -> int:
        """Count the floating-point operations per trained token with PyTorch."""
        return round(counted_flops_per_token(self.engine.model, self.task.sequence_length))

    @property
    def compile(self) -> str:
        """The compilation mode of forward pass, loss and backward pass."""
        return chosen(TorchOptions, self.variant.options).compile

    def prepare(self, nll: Nll) -> float:
        """Compile a training step; return the seconds. Gradients and random state are preserved."""
        if self.compile == NO_COMPILE:
            return 0.0
        started = time.perf_counter()
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
        return time.perf_counter() - started

    def peak_flops(self) -> float | None:
        """Look up the device's peak in FLOP/s; None if unknown."""
        device = torch.device(self.engine.info.device)
        if device.type != "cuda":
            return None
        return peak_flops(torch.cuda.get_device_name(device), "bfloat16" if self.autocast else "float32")


def open_session(variant: Variant, task: TrainTask) -> Session:
    """Prepare a training, or resume it from the newest checkpoint in its output folder.

    Sets torch's global random state: to the seed, or to that of the checkpoint.

    Raises:
        UsageError: a setting is not possible, or the checkpoints are of a training with other settings.
        ModelLoadError: the model or the checkpoint cannot be loaded, or the checkpoints do not fit on the disk.
    """
    if variant.backend != "torch" or variant.quantization != "none":
        raise UsageError("only the torch backend can train, without quantization: use backend=torch")
    if config_from(DevicesOption, chosen(TorchOptions, variant.options)) != DevicesOption():
        raise UsageError("a model is trained on one device: use tensor_parallel=1 and device_map=none")
    device = resolve_device(variant.device)
    require_tried(device, "training")
    dtype, label = resolve_dtype(variant.dtype, device)
    if dtype == torch.float16:
        raise UsageError("float16 gradients underflow without loss scaling: use dtype=bfloat16 or float32")
    autocast = dtype == torch.bfloat16
    corpus = load_corpus(task.corpus)
    split = split_texts(corpus.texts, task.validation_share, task.split)
    path = checkpoint.newest(Path(task.output))
    saved = _read(path, variant, task) if path else None
    if path and saved:
        engine = _engine_of(path, device, saved)
    elif starts_from_scratch(variant.model, task.start):
        engine = fresh_engine(variant.model, task, split, device)
    else:
        options = tuple((name, value) for name, value in variant.options if name != "compile")
        engine = load_engine(replace(variant, dtype="float32", device=device, options=options))
    torch.manual_seed(task.seed)
    dataset, text_warnings = _windows(engine, split, task)
    session = Session(
        variant=variant,
        task=task,
        engine=engine,
        optimizer=make_optimizer(engine.model, task.weight_decay),
        dataset=dataset,
        split=split,
        warnings=corpus.warnings + text_warnings,
        scoring=replace(task.scoring, bos_rule=_bos_rule(engine)),
        autocast=autocast,
        facts={},
        run_key=uuid.uuid4().hex,
        started_at=time.time(),
    )
    session.facts = _facts(session, corpus, "bfloat16 (autocast over float32 weights)" if autocast else label)
    if path and saved:
        _resume(session, path, saved)
    remaining = task.steps - session.state.step
    checkpoint.require_room_for_all(session.folder, engine.model, -(-remaining // task.eval_every))
    return session


def starts_from_scratch(model: str, start: str) -> bool:
    """Return whether a training starts with fresh weights; see `TrainTask.start`.

    Raises:
        UsageError: `start` is `scratch` and the model is not a `synthetic:` preset, or cannot be parsed.
    """
    is_preset = parse_candidates(model)[0].kind == "synthetic"
    if start == "scratch" and not is_preset:
        raise UsageError(
            f"start=scratch needs a synthetic:PRESET to take the shape of, not {model!r}: use model=synthetic:1m"
        )
    return is_preset if start == "auto" else start == "scratch"


def _engine_of(path: Path, device: str, saved: dict[str, Any]) -> TorchEngine:
    model, tokenizer = load_folder(path, device=device, dtype=torch.float32)
    clean_generation(model, tokenizer)
    return TorchEngine(model, tokenizer, model_id=saved["facts"]["model_id"], tags=saved["tags"])


def _windows(engine: TorchEngine, split: Split, task: TrainTask) -> tuple[WindowDataset, tuple[str, ...]]:
    """Cut the training text into windows; also return warnings about it."""
    context = engine.info.context_length
    if context is not None and task.sequence_length > context:
        raise UsageError(
            f"sequence_length {task.sequence_length} is over the model's context of {context}: use at most {context}"
        )
    # Backpropagation needs keys and values of every layer: a lower bound of the memory.
    check_batch(engine.info, task.batch_size, task.sequence_length)
    encoded = encode_text(engine, SEPARATOR.join(split.train), _bos_rule(engine))
    windows = plan_training_windows(len(encoded.ids), task.sequence_length, task.window_stride)
    if not windows:
        raise UsageError("the text to train on has no token to predict: use a longer corpus")
    warnings = unknown_warning(
        encoded.unknown,
        encoded.predicted,
        "tokens to train on",
        "the model cannot learn that text",
    ) + lost_warning(encoded.lost, "nothing is learned of them")
    return WindowDataset(encoded.ids, windows), warnings


def _bos_rule(engine: TorchEngine) -> str:
    return "none" if engine.info.special_tokens.start_id is None else "model"


def _facts(session: Session, corpus: Corpus, label: str) -> dict[str, Scalar]:
    info, scoring = session.engine.info, session.scoring
    facts: dict[str, Scalar] = {
        **info.facts,
        "model_id": info.model_id,
        "device": info.device,
        "dtype": label,
        "vocab_size": info.vocab_size,
        "threads": torch.get_num_threads(),
        "corpus": corpus.name,
        "corpus_digest": corpus.digest,
        "corpus_blank_rows": corpus.blank,
        "split": session.split.method,
        "start": "scratch" if starts_from_scratch(session.variant.model, session.task.start) else "weights",
        "train_windows": len(session.dataset),
        "compile": session.compile,
        "protocol": scoring.protocol,
        "max_length": scoring.max_length,
        "stride": scoring.window_stride,
        "bos_rule": scoring.bos_rule,
        "max_tokens": scoring.max_tokens,
    }
    if info.context_length is not None:
        facts["context_length"] = info.context_length
    return facts


def _resume_settings(variant: Variant, task: TrainTask) -> dict[str, Any]:
    """Return the settings that must be equal to resume a training."""
    settings = {**to_json(variant), **to_json(task)}
    return {name: value for name, value in settings.items() if name not in not_asked(task)}


def _read(path: Path, variant: Variant, task: TrainTask) -> dict[str, Any]:
    """Read a checkpoint's data; refuse one of another training."""
    saved = checkpoint.read_state(path)
    if saved.get("format") != FORMAT or not isinstance(saved.get("asked"), dict):
        raise UsageError(f"{path} was written by another version of llmtrack: train anew with resume=false")
    then, now = saved["asked"], json.loads(json.dumps(_resume_settings(variant, task)))
    changes = [
        f"{name} {then.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(now | then)
        if now.get(name) != then.get(name)
    ]
    if changes:
        raise UsageError(
            f"{path.parent} holds a training with other settings ({'; '.join(changes)}): "
            "give the same settings, or another output"
        )
    return saved


def _resume(session: Session, path: Path, saved: dict[str, Any]) -> None:
    if saved["facts"].get("corpus_digest") != session.facts["corpus_digest"]:
        raise UsageError(
            f"the corpus {session.facts['corpus']} has changed since this training began: "
            "give the same text, or train anew with resume=false"
        )
    session.state = from_json(saved["state"], State)
    session.run_key, session.started_at = saved["run_key"], saved["started_at"]
    session.history = from_json(saved["history"], list[StepValues])
    session.samples, session.before = saved["samples"], saved["before"]
    # Tracked params are immutable; differences of the environment show in its tags.
    session.facts = saved["facts"]
    session.resumed = True
    checkpoint.restore(path, session.optimizer, torch.device(session.engine.info.device))
