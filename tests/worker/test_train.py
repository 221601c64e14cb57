"""Trainings of a tiny model: their events, what is kept, and bit-identical resuming."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llmtrack.engines.registry import load_engine
from llmtrack.errors import ModelLoadError
from llmtrack.quality.perplexity import score_rolling
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.spec.events import Begun, Log, Steps
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask
from llmtrack.train import checkpoint, session
from llmtrack.worker.train import measure_training
from tests.forking import ForkedWorker
from tests.run.scenarios import outcomes

TINY = Variant("synthetic:tiny", device="cpu")
GPT2 = Variant("synthetic:tiny-gpt2", device="cpu")  # has dropout, so that the random state matters


@pytest.fixture(autouse=True)
def _same_random_state_for_other_tests():
    with torch.random.fork_rng():
        yield


@pytest.fixture(autouse=True, scope="module")
def _counted_once():
    """Count the operations of a kind of model once: it takes as long as a step of training."""
    count, counted = session.counted_flops_per_token, {}

    def count_once(model, length):
        key = (model.config.model_type, length)
        if key not in counted:
            counted[key] = count(model, length)
        return counted[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "counted_flops_per_token", count_once)
        yield


def task(folder, **changes):
    values = {
        "corpus": "builtin",
        "steps": 6,
        "eval_every": 2,
        "sequence_length": 24,
        "batch_size": 2,
        "accumulate": 2,
        "warmup_steps": 2,
        "learning_rate": 3e-3,
        "validation_tokens": 200,
        "sample_tokens": 3,
        "output": str(folder),
    }
    return TrainTask(**{**values, **changes})


def train(folder, variant=TINY, watch=lambda event: None, **changes):
    events = []

    def emit(event):
        events.append(event)
        watch(event)

    requested_task = task(folder, **changes)
    measure_training(Scenario("t", variant, requested_task), requested_task, emit, time.perf_counter)
    return events


def curve(outcome):
    """Return the values of the steps, without times and the machine's state."""
    return [
        (row.step, {k: v for k, v in row.values.items() if k != "train_tokens_per_sec" and not k.startswith("system/")})
        for row in outcome.steps
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A training's folder, to be treated as read-only, and its events."""
    folder = tmp_path_factory.mktemp("train")
    with torch.random.fork_rng():
        return folder, train(folder, explain=True)


@pytest.mark.slow(1)
def test_training_reduces_the_loss_and_emits_its_steps(finished):
    _, events = finished
    outcome = events[-1]
    assert isinstance(outcome, Measurement)
    assert outcome.metrics["perplexity"] < outcome.metrics["perplexity_before"] < 700
    assert outcome.metrics["steps_done"] == 6
    assert outcome.metrics["tokens_trained"] == pytest.approx(6 * 4 * 24, abs=4 * 24)
    assert "mfu" not in outcome.metrics, "no CPU's peak is known"
    assert [row.step for row in outcome.steps if "val_loss" in row.values] == [0, 2, 4, 6]
    assert [row.step for row in outcome.steps if "train_loss" in row.values] == [1, 2, 3, 4, 5, 6]
    rows = [row for event in events if isinstance(event, Steps) for row in event.rows]
    assert tuple(rows) == outcome.steps
    (begun,) = [event for event in events if isinstance(event, Begun)]
    assert begun.run_key == outcome.run_key
    assert dict(begun.facts).items() <= dict(outcome.facts).items()
    assert set(outcome.texts) == {"samples.md", "explanation.txt", "validation.jsonl"}
    by_hand = next(event.text for event in events if isinstance(event, Log) and "loss by hand" in event.text)
    hand, torch_value = (line.split()[-2] for line in by_hand.splitlines() if " nats" in line and "loss by" in line)
    assert float(hand) == pytest.approx(float(torch_value), abs=2e-6)


@pytest.mark.slow(1)
def test_metrics_follow_the_perplexity_protocol(finished):
    """The checkpoint, loaded like any model, has the tracked score on the held-out text."""
    folder, events = finished
    outcome = events[-1]
    texts = [json.loads(line)["text"] for line in outcome.texts["validation.jsonl"].splitlines()]
    best = checkpoint.path_of(folder, int(outcome.metrics["best_step"]))
    engine = load_engine(str(best), device="cpu")
    quality = score_rolling(engine, texts, max_length=24, bos_rule="model", max_tokens=200)
    assert quality.perplexity == pytest.approx(outcome.metrics["perplexity"], rel=1e-6)
    by_loop = {row.step: row.values["val_loss"] for row in outcome.steps if "val_loss" in row.values}
    assert by_loop[outcome.metrics["best_step"]] == pytest.approx(quality.loss, rel=1e-6)
    assert by_loop[0] == pytest.approx(outcome.metrics["loss_before"], rel=1e-12)


@pytest.mark.slow(2)
def test_a_checkpoint_is_an_ordinary_model_folder(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, events = finished
    outcome = events[-1]
    assert {path.name for path in checkpoint.checkpoints(folder)} <= {"checkpoint-000006", "checkpoint-000004"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    newest = checkpoint.newest(folder)
    tokenizer = AutoTokenizer.from_pretrained(newest)
    assert tokenizer.decode(tokenizer("Überall ist ☃")["input_ids"]) == "Überall ist ☃"
    model = AutoModelForCausalLM.from_pretrained(newest)
    assert model.dtype == torch.float32
    assert {name.removeprefix("checkpoint/") for name in outcome.files} == {path.name for path in newest.iterdir()} - {
        checkpoint.STATE,
        checkpoint.TENSORS,
    }
    assert not list(newest.glob("*.bin"))


@pytest.mark.slow(3)
@pytest.mark.parametrize(("variant", "at"), [(TINY, 4), (GPT2, 3)], ids=["at an evaluation", "with dropout"])
def test_a_resumed_training_is_bit_identical(tmp_path, variant, at, finished):
    uninterrupted = finished[1][-1] if variant == TINY else train(tmp_path / "whole", variant)[-1]
    events = []

    def interrupt(event):
        events.append(event)
        if getattr(event, "step", "") == f"step {at}/6":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", variant, interrupt)
    stopped = events[-1]
    assert isinstance(stopped, Failure)
    assert stopped.kind == "interrupted"
    assert f"after step {at} of 6" in stopped.reason
    assert checkpoint.newest(tmp_path / "parts").name == f"checkpoint-00000{at}"
    second = train(tmp_path / "parts", variant)
    resumed = second[-1]
    assert isinstance(resumed, Measurement), resumed
    assert next(event for event in second if isinstance(event, Begun)).resumed
    assert curve(resumed) == curve(uninterrupted)
    assert resumed.run_key == stopped.run_key != uninterrupted.run_key
    assert resumed.started_at == stopped.started_at
    for name in ("loss", "perplexity_before", "best_step", "tokens_trained", "train_loss"):
        assert resumed.metrics[name] == uninterrupted.metrics[name]
    # Only `finished` explains its loss.
    assert resumed.texts == {name: uninterrupted.texts[name] for name in ("samples.md", "validation.jsonl")}


@pytest.mark.slow(1)
def test_other_settings_do_not_resume_a_training(finished, tmp_path):
    folder, _ = finished
    (outcome,) = outcomes(train(folder, steps=9))
    assert isinstance(outcome, Failure)
    assert "other settings (steps 6, now 9)" in outcome.reason


@pytest.mark.slow(1)
def test_a_damaged_checkpoint_is_refused(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "damaged")
    (checkpoint.newest(folder) / checkpoint.TENSORS).write_bytes(b"not tensors")
    outcome = train(folder)[-1]
    assert isinstance(outcome, Failure)
    assert "cannot be resumed" in outcome.reason
    assert "resume=false" in outcome.reason


@pytest.mark.parametrize(
    "read", [checkpoint.read_state, lambda path: checkpoint.restore(path, None, torch.device("cpu"))]
)
def test_an_unreadable_checkpoint_is_an_error(tmp_path, monkeypatch, read):
    def unreadable(*args, **named):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(torch, "load", unreadable)
    with pytest.raises(ModelLoadError, match=r"Too many open files.*: make it readable, and run this again"):
        read(tmp_path)


@pytest.mark.slow(1)
def test_a_non_finite_loss_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from llmtrack.train import loop

    calls, honest = [], loop.sum_cross_entropy

    def poisoned(logits, targets):
        calls.append(None)
        # Two passes a step: the first of step 5.
        return honest(logits, targets) * (float("nan") if len(calls) == 9 else 1.0)

    monkeypatch.setattr(loop, "sum_cross_entropy", poisoned)
    outcome = train(tmp_path)[-1]
    assert isinstance(outcome, Failure)
    assert outcome.kind == "non_finite"
    assert "the loss (nan) of step 5 is not finite" in outcome.reason
    assert f"the last good checkpoint is {tmp_path / 'checkpoint-000004'}" in outcome.reason
    assert [row.step for row in outcome.steps if "train_loss" in row.values] == [1, 2, 3, 4]
    monkeypatch.undo()
    assert isinstance(train(tmp_path)[-1], Measurement), "it can be resumed"


@pytest.mark.parametrize(
    ("variant", "changes", "says"),
    [
        (replace(TINY, backend="other"), {}, "only the torch backend can train"),
        (replace(TINY, options=(("tensor_parallel", 2),)), {}, "a model is trained on one device"),
        (replace(TINY, options=(("device_map", "auto"),)), {}, "a model is trained on one device"),
        (TINY, {"sequence_length": 5000}, "over the model's context of 1024"),
        (Variant("packaged:smollm2", device="cpu"), {"start": "scratch"}, "start=scratch needs a synthetic:PRESET"),
        (TINY, {"corpus": "nothing.txt"}, "no corpus 'nothing.txt'"),
    ],
)
def test_untrainable_scenarios_fail_with_the_reason(tmp_path, variant, changes, says):
    outcome = train(tmp_path, variant, **changes)[-1]
    assert isinstance(outcome, Failure)
    assert says in outcome.reason


@pytest.mark.slow(1)
def test_training_continues_from_weights_in_bfloat16(tmp_path, tiny_model_dir):
    outcome = train(
        tmp_path, Variant(str(tiny_model_dir), device="cpu", dtype="bfloat16"), steps=2, log_checkpoint="none"
    )[-1]
    assert isinstance(outcome, Measurement), outcome
    assert outcome.facts["start"] == "weights"
    assert outcome.facts["dtype"] == "bfloat16 (autocast over float32 weights)"
    assert not outcome.files
    assert outcome.metrics["perplexity"] != outcome.metrics["perplexity_before"]


@pytest.mark.slow(1)
def test_early_stop_keeps_the_best(tmp_path):
    spoiling = {"learning_rate": 0.5, "warmup_steps": 0}
    outcome = train(tmp_path, steps=40, eval_every=1, patience=1, log_checkpoint="model", **spoiling)[-1]
    assert isinstance(outcome, Measurement), outcome
    assert outcome.facts["ended"] == "stopped_early"
    assert outcome.metrics["steps_done"] < 40
    losses = {row.step: row.values["val_loss"] for row in outcome.steps if "val_loss" in row.values and row.step}
    assert outcome.metrics["loss"] == pytest.approx(min(losses.values()), rel=1e-6)
    assert {checkpoint._step(path) for path in checkpoint.checkpoints(tmp_path)} == {
        outcome.metrics["best_step"],
        outcome.metrics["steps_done"],
    }
    # As an MLflow model, without what belongs to training.
    held = {path.name for path in Path(outcome.model_folder).iterdir()}
    assert held == {name.removeprefix("checkpoint/") for name in outcome.files}
    engine = load_engine(outcome.model_folder, device="cpu")
    texts = [json.loads(line)["text"] for line in outcome.texts["validation.jsonl"].splitlines()]
    scored = score_rolling(engine, texts, max_length=24, bos_rule="model", max_tokens=200)
    assert scored.loss == pytest.approx(outcome.metrics["loss"], rel=1e-6)


@pytest.mark.slow(1)
def test_an_interrupted_worker_saves_a_checkpoint_first(tmp_path, monkeypatch):
    """Ctrl-C in the parent: the worker ends its step, saves a checkpoint, reports it, and ends."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    executor, events = ProcessExecutor(start=ForkedWorker), []
    requested_task = task(tmp_path, steps=5000, eval_every=10000)

    def emit(event):
        events.append(event)
        if str(getattr(event, "step", "")).startswith("step 3/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.run([Scenario("t", TINY, requested_task)], emit)
    worker = executor._worker
    executor.close()
    assert not worker.lives()
    stopped = events[-1]
    assert isinstance(stopped, Failure)
    assert stopped.kind == "interrupted"
    newest = checkpoint.newest(tmp_path)
    assert f"after step {checkpoint._step(newest)} of 5000" in stopped.reason
    assert 3 <= checkpoint._step(newest) < 1000
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow(1)
def test_the_inline_executor_trains_too(tmp_path):
    executor, events = InlineExecutor(), []
    executor.run([Scenario("t", TINY, task(tmp_path, steps=1))], events.append)
    assert isinstance(events[-1], Measurement)
