"""Measure train tasks: train, and emit steps, evaluations and the outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from llmtrack.engine import GenerateRequest
from llmtrack.engines.options import TorchOptions
from llmtrack.engines.torch.pytorch import threads_set
from llmtrack.host.signals import defer_signals
from llmtrack.measure import gauges
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.memory import check_batch
from llmtrack.measure.statistics import summarize_rate
from llmtrack.measure.system_metrics import system_reader, system_values
from llmtrack.measure.timing import Clock
from llmtrack.quality.metrics import compute_perplexity, quality_warnings
from llmtrack.quality.perplexity import Batch
from llmtrack.spec.events import LOADING, Begun, Emit, Log, Progress, SoFar, Steps, Warn
from llmtrack.spec.options import chosen
from llmtrack.spec.outcome import Failure, Measurement, Outcome, StepValues
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import TrainTask, workload_id
from llmtrack.train import checkpoint
from llmtrack.train.loop import Hooks, LoopSettings, State, StepResult, compiled_nll, fit
from llmtrack.train.session import Session, open_session
from llmtrack.worker.device_metrics import Watch
from llmtrack.worker.outcomes import engine_metrics, failure_of

BATCH_SECONDS = 5.0
"""Interval of step batches, each of which is one request to the tracking store."""

PROMPT_TOKENS = 16
"""Tokens of held-out text that a sample continues."""


def measure_training(scenario: Scenario, task: TrainTask, emit: Emit, clock: Clock) -> None:
    """Train and emit the outcome; if a signal requests to stop, save a checkpoint first."""
    started = time.time()
    emit(Progress(scenario.name, LOADING, 0.0))
    # Catch everything: the steps are not the engine's own calls.
    with defer_signals() as should_stop, threads_set(chosen(TorchOptions, scenario.variant.options).threads):
        try:
            session = open_session(scenario.variant, task)
        except Exception as error:
            emit(failure_of(scenario, error, started))
            return
        steps = _StepLog(session, emit, clock)
        training = _Training(scenario, task, session, steps, emit, should_stop, clock)
        emit(training.run())


class _StepLog:
    """Records the steps, and emits them in batches."""

    def __init__(self, session: Session, emit: Emit, clock: Clock) -> None:
        self._session, self._emit, self._clock = session, emit, clock
        self._pending: list[StepValues] = list(session.history)
        self._since = clock()

    def add(self, step: int, values: dict[str, float]) -> None:
        """Record the values of a step."""
        row = StepValues(step, time.time(), values)
        self._session.history.append(row)
        self._pending.append(row)
        if self._clock() - self._since >= BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Emit the pending steps."""
        if self._pending:
            self._emit(Steps(self._session.run_key, tuple(self._pending)))
        self._pending, self._since = [], self._clock()


class _Training:
    def __init__(
        self,
        scenario: Scenario,
        task: TrainTask,
        session: Session,
        steps: _StepLog,
        emit: Emit,
        should_stop: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._scenario, self._task, self._session, self._steps = scenario, task, session, steps
        self._emit, self._clock = emit, clock
        self._hooks = Hooks(self._evaluate, lambda _: session.save(), self._on_step, self._on_evaluated, should_stop)
        self._rates: list[float] = []
        self._beside = BestEffort()
        self._flops = self._beside.get("the model's FLOP count", session.flops_per_token, 0)
        self._peak_flops = self._beside.get("the device's peak FLOP/s", session.peak_flops, None)
        counted = self._beside.get("the counted FLOPs", session.counted_flops_per_token, 0)
        if not session.resumed:
            known = {"flops_per_token": self._flops, "flops_per_token_counted": counted}
            session.facts |= {name: value for name, value in known.items() if value}
        self._explanation = ""
        self._compile_s = 0.0

    def run(self) -> Outcome:
        """Train, emitting events, and return the outcome."""
        session, beside = self._session, self._beside
        self._introduce()
        device = session.engine.info.device
        gauge = beside.get("the state of the device", lambda: gauges.gauge_of(device), None)
        watch = Watch(device, gauge, beside)
        self._read_system = system_reader(gauge)
        self._system = beside.get("the state of the machine", self._read_system, None)
        try:
            if self._task.explain:
                self._explanation = beside.get("the explanation of the loss", session.explain, "")
                self._emit(Log(self._explanation))
            nll = compiled_nll(session.compile)
            self._compile_s = session.prepare(nll)
            beside.get("the peak memory", session.engine.reset_peak_memory, None)
            ending = fit(
                session.engine.model,
                session.optimizer,
                session.batches(),
                _loop_settings(self._task, session.autocast),
                session.state,
                self._hooks,
                self._clock,
                nll,
            )
            peak = beside.get("the peak memory", session.engine.peak_memory_bytes, None)
            _, disturbing = watch.end()
            self._steps.flush()
            return self._interrupted() if ending == "interrupted" else self._finished(ending, peak, disturbing)
        except Exception as error:
            self._steps.flush()
            return self._failed(error)

    def _introduce(self) -> None:
        session, info, task = self._session, self._session.engine.info, self._task
        device, facts = info.device.split(":")[0], session.facts
        self._emit(Log(f"Loaded: {info.model_id} | device={device} | dtype={facts['dtype']}"))
        self._emit(
            Log(
                f"  {facts['parameters']:,} parameters, start: {facts['start']}; {len(session.dataset):,} windows of "
                f"{task.sequence_length} tokens to train on, split by {facts['split']}; "
                f"{task.batch_size * task.accumulate} windows a step; checkpoints in {task.output}"
            )
        )
        if session.resumed:
            self._emit(Log(f"  resumed after step {session.state.step} of {task.steps}"))
        for warning in info.warnings:
            self._emit(Warn(warning))
        self._emit(
            Begun(
                scenario=self._scenario,
                run_key=session.run_key,
                facts=session.facts,
                tags=dict(info.tags),
                started_at=session.started_at,
                resumed=session.resumed,
            )
        )
        self._steps.flush()

    def _on_step(self, result: StepResult) -> None:
        values = {
            "train_loss": result.loss,
            "learning_rate": result.learning_rate,
            "grad_norm": result.grad_norm,
        }
        if result.seconds > 0:
            self._rates.append(result.tokens / result.seconds)
            values |= self._speed(self._rates[-1])
        self._steps.add(result.step, values)
        steps = self._task.steps
        self._emit(Progress(self._scenario.name, f"step {result.step}/{steps}", result.step / steps))

    def _speed(self, rate: float) -> dict[str, float]:
        mfu = {"mfu": rate * self._flops / self._peak_flops} if self._flops and self._peak_flops else {}
        return {"train_tokens_per_sec": rate, **mfu}

    def _evaluate(self) -> float:
        step, session = self._session.state.step, self._session
        self._emit(Progress(self._scenario.name, f"evaluating after step {step}", step / self._task.steps))
        quality = session.score(self._on_scored)
        if not session.before:
            session.before = quality.figures
        if self._task.sample_tokens:
            session.samples[str(step)] = self._beside.get("a sample of its text", self._sample, "")
        return quality.loss

    def _on_scored(self, batch: Batch) -> None:
        # A sign of life, as scoring a long held-out part takes a while.
        self._emit(Progress(self._scenario.name, f"evaluating: batch {batch.number}/{batch.of}"))

    def _sample(self) -> str:
        engine = self._session.engine
        prompt = self._session.prompt(PROMPT_TOKENS)
        context, new_tokens = engine.info.context_length, self._task.sample_tokens
        if context is not None:
            new_tokens = min(new_tokens, max(context - len(prompt), 1))
        check_batch(engine.info, 1, len(prompt), new_tokens)
        generated = engine.generate(GenerateRequest((prompt,), new_tokens), lambda: None)
        return f"{engine.decode(prompt)} [...] {engine.decode(generated.new_ids[0])}"

    def _on_evaluated(self, state: State) -> None:
        perplexity = compute_perplexity(state.loss)
        self._steps.add(state.step, {"val_loss": state.loss, "val_perplexity": perplexity, **self._system_values()})
        self._steps.flush()
        parts = [f"validation loss {state.loss:.4f} (perplexity {perplexity:.2f})"]
        if self._rates:
            rate = summarize_rate(self._rates[-self._task.eval_every :]).median
            parts = [f"train loss {self._last_loss():.4f}", *parts, f"{rate:,.0f} tokens/s"]
        self._emit(Log(f"  step {state.step}/{self._task.steps}: {', '.join(parts)}"))
        if text := self._session.samples.get(str(state.step)):
            self._emit(Log(f"    {' '.join(text.split())}"))

    def _system_values(self) -> dict[str, float]:
        before, self._system = self._system, self._beside.get("the state of the machine", self._read_system, None)
        return system_values([(before, self._system)]) if before is not None and self._system is not None else {}

    def _last_loss(self) -> float:
        return next(row.values["train_loss"] for row in reversed(self._session.history) if "train_loss" in row.values)

    def _finished(self, ending: str, peak: int | None, disturbing: tuple[str, ...]) -> Measurement:
        session, state = self._session, self._session.state
        session.load_best()
        quality = session.score(self._on_scored)
        metrics = engine_metrics(session.engine, peak) | quality.figures
        metrics |= {f"{name}_before": session.before[name] for name in ("loss", "perplexity")}
        metrics |= {
            "train_loss": self._last_loss(),
            "steps_done": float(state.step),
            "best_step": float(state.best_step),
            "tokens_trained": float(state.tokens),
            "train_seconds": state.seconds,
        }
        if self._compile_s:
            metrics["compile_time_s"] = self._compile_s
        rates = tuple(self._rates)
        summaries = {"train_tokens_per_sec": summarize_rate(rates)} if rates else {}
        for summary in summaries.values():
            metrics |= self._speed(summary.median)
        best = checkpoint.path_of(session.folder, state.best_step)
        self._emit(Log(f"  best checkpoint: {best}"))
        trained = Measurement(
            scenario=self._scenario,
            workload_id=workload_id(self._task, str(session.facts["corpus_digest"])),
            facts=session.facts | quality.facts | {"ended": ending},
            metrics=metrics,
            summaries=summaries,
            samples=dict.fromkeys(summaries, rates),
            warnings=disturbing
            + self._beside.warnings
            + session.warnings
            + quality_warnings(quality)
            + session.engine.info.warnings,
            sample_text=session.samples.get(str(state.best_step)),
            tags=dict(session.engine.info.tags),
            started_at=session.started_at,
            ended_at=time.time(),
            run_key=session.run_key,
            steps=tuple(session.history),
            texts=self._texts(),
        )
        self._emit(SoFar(trained))
        beside = self._beside
        warned = len(beside.warnings)
        paths, model = beside.get("the tracked checkpoint", lambda: self._files_to_track(best), ([], ""))
        return replace(
            trained,
            warnings=(*trained.warnings, *beside.warnings[warned:]),
            files={f"checkpoint/{path.name}": str(path) for path in paths},
            model_folder=model,
            ended_at=time.time(),
        )

    def _files_to_track(self, best: Path) -> tuple[list[Path], str]:
        """Return the files of a checkpoint to track, and the folder of the MLflow model; empty where not requested."""
        requested = self._task.log_checkpoint
        files = [] if requested == "none" else checkpoint.model_files(best)
        return files, str(checkpoint.export_model(best, self._session.folder / "model")) if requested == "model" else ""

    def _interrupted(self) -> Failure:
        reason = (
            f"interrupted after step {self._session.state.step} of {self._task.steps}; "
            "its checkpoint is kept, and the same command with resume=true goes on"
        )
        return self._ended_early(Failure(self._scenario, "interrupted", reason))

    def _failed(self, error: Exception) -> Failure:
        failure = failure_of(self._scenario, error, self._session.started_at)
        last = checkpoint.newest(self._session.folder)
        remains = f"the last good checkpoint is {last}" if last else "there was no checkpoint yet"
        return self._ended_early(replace(failure, reason=f"{failure.reason}; {remains}"))

    def _ended_early(self, failure: Failure) -> Failure:
        session = self._session
        return replace(
            failure,
            facts=session.facts,
            tags=dict(session.engine.info.tags),
            started_at=session.started_at,
            ended_at=time.time(),
            run_key=session.run_key,
            steps=tuple(session.history),
            texts=self._texts(),
        )

    def _texts(self) -> dict[str, str]:
        session = self._session
        texts = {
            "samples.md": "".join(f"## After step {at}\n\n{text}\n\n" for at, text in session.samples.items()),
            "explanation.txt": self._explanation,
            # With this file, the `perplexity` experiment can score the same text with any model.
            "validation.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in session.split.validation),
        }
        return {name: text for name, text in texts.items() if text}


def _loop_settings(task: TrainTask, autocast: bool) -> LoopSettings:
    names = [field.name for field in fields(LoopSettings) if field.name != "autocast"]
    return LoopSettings(**{name: getattr(task, name) for name in names}, autocast=autocast)
