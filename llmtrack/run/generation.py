"""Measure generation tasks on a loaded engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmtrack.engines.base import Engine, GenerateRequest
from llmtrack.measure.interference import busy_warning, gpu_warning, read_cpu
from llmtrack.measure.metrics import decode_step_bytes, memory_bandwidth_utilization
from llmtrack.measure.timing import Arm, Clock, Timing, request_for, time_arms
from llmtrack.run.events import Progress
from llmtrack.run.outcomes import MIB, Emit, engine_facts, engine_metrics, failure_of
from llmtrack.scenario import GenerateTask, Measurement, Scenario, digest, workload_id

SAMPLE_ROWS = 4


def measure_generation(scenarios: Sequence[Scenario], engine: Engine, emit: Emit, clock: Clock) -> None:
    """Measure the generation tasks among scenarios, interleaved, and emit each outcome as it is there."""
    # Arms are interleaved, so each one's start is that of its first call.
    started: dict[str, float] = {}
    asked: dict[str, Scenario] = {}
    arms: dict[str, Arm] = {}
    for scenario in scenarios:
        if not isinstance(scenario.task, GenerateTask):
            continue
        try:
            arms[scenario.name] = Arm(request_for(engine, scenario.task), scenario.repeat)
            asked[scenario.name] = scenario
        except Exception as error:
            emit(failure_of(scenario, error, time.time(), engine))

    def on_call(name: str, repeat: int) -> None:
        started.setdefault(name, time.time())
        emit(Progress(name, f"repeat {repeat}" if repeat else "warm-up"))

    before = read_cpu()
    for name, result in time_arms(engine, arms, clock, on_call):
        if isinstance(result, Exception):
            emit(failure_of(asked[name], result, started[name], engine))
        else:
            busy = busy_warning(before, read_cpu()) + gpu_warning(engine.info.device)
            emit(_generation_measurement(asked[name], arms[name], result, engine, busy, started[name]))


def _generation_measurement(
    scenario: Scenario, arm: Arm, timing: Timing, engine: Engine, busy: tuple[str, ...], started: float
) -> Measurement:
    task = scenario.task
    lengths = tuple(len(row) for row in arm.request.prompt_ids)
    metrics = dict(timing.metrics) | engine_metrics(engine)
    if timing.peak_memory_bytes is not None:
        metrics["peak_memory_mib"] = timing.peak_memory_bytes / MIB
    if arm.request.use_cache and "inter_token_latency_ms" in metrics:
        metrics |= _bandwidth_metrics(
            engine, lengths, arm.request.max_new_tokens, metrics["inter_token_latency_ms"]
        )
    return Measurement(
        scenario=scenario,
        workload_id=workload_id(task),
        facts=engine_facts(engine)
        | {
            "batch_size": len(lengths),
            "prompt_tokens": max(lengths),
            "prompt_tokens_per_row": ",".join(map(str, lengths)),
            "prompt_tokens_total": sum(lengths),
            "decoding": "greedy",
            "output_digest": digest(timing.new_ids),
        },
        metrics=metrics,
        summaries=timing.summaries,
        samples=timing.samples,
        warnings=timing.warnings + _padding_warning(arm.request) + busy + engine.info.warnings,
        sample_text="\n---\n".join(engine.decode(row) for row in timing.new_ids[:SAMPLE_ROWS]),
        tags=dict(engine.info.tags),
        series={"token_latency_ms": timing.gaps_ms},
        started_at=started,
        ended_at=time.time(),
    )


def _padding_warning(request: GenerateRequest) -> tuple[str, ...]:
    lengths = {len(row) for row in request.prompt_ids}
    if request.padding_side != "right" or len(lengths) == 1:
        return ()
    return (
        "right padding: rows shorter than the longest go on from their pads, so their text is not what the model "
        "would say: use padding_side=left for output that counts",
    )


def _bandwidth_metrics(
    engine: Engine, prompt_tokens: tuple[int, ...], new_tokens: int, step_ms: float
) -> dict[str, float]:
    from llmtrack.measure.bandwidth import copy_bandwidth

    info = engine.info
    bandwidth = copy_bandwidth(info.device)
    step_bytes = decode_step_bytes(info.step_weight_bytes, info.kv_bytes_per_token, prompt_tokens, new_tokens)
    return {
        "copy_bandwidth_gb_per_s": bandwidth / 1e9,
        "memory_bandwidth_utilization": memory_bandwidth_utilization(step_bytes, step_ms / 1000, bandwidth),
    }
