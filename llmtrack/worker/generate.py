"""Measure generate tasks on a loaded engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import median

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.host.formatting import truncate
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.disturbances import CpuReading, busy_warning, read_cpu
from llmtrack.measure.formulas import GenerationTrace
from llmtrack.measure.prompts import Prompts, tokenize_prompts
from llmtrack.measure.statistics import disturbed
from llmtrack.measure.system_metrics import system_reader, system_steps
from llmtrack.measure.timing import Arm, Clock, Timing, requests_for, time_arms
from llmtrack.spec.events import Emit, Progress, SoFar
from llmtrack.spec.outcome import MOST_GENERATIONS, Generation, Measurement
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.spec.serialization import digest
from llmtrack.spec.task import GenerateTask, workload_id
from llmtrack.worker.device_metrics import device_warnings, energy_figures, gauge_for, generation_roofline, roof_of
from llmtrack.worker.outcomes import engine_facts, engine_metrics, failure_of

SAMPLE_ROWS = 4
_LONGEST = 10_000
"""Maximum characters of a prompt or an output."""


def measure_generation(scenarios: Sequence[Scenario], engine: Engine, emit: Emit, clock: Clock) -> None:
    """Measure the generate tasks among scenarios, interleaved; emit each outcome when it is complete."""
    # Interleaved, so each starts with its first call.
    started_at: dict[str, float] = {}
    requested: dict[str, tuple[Scenario, GenerateTask, Prompts]] = {}
    arms: dict[str, Arm] = {}
    for scenario in scenarios:
        if not isinstance(scenario.task, GenerateTask):
            continue
        try:
            prompts = tokenize_prompts(engine, scenario.task)
            arms[scenario.name] = Arm(requests_for(scenario.task, prompts.ids), scenario.repeat)
            requested[scenario.name] = (scenario, scenario.task, prompts)
        except Exception as error:
            emit(failure_of(scenario, error, time.time(), engine))

    def on_call(name: str, repeat: int) -> None:
        started_at.setdefault(name, time.time())
        emit(Progress(name, f"repeat {repeat}" if repeat else "warm-up"))

    gauge = gauge_for(engine.info, BestEffort())  # before anything warms the device up
    before = BestEffort().get("the load of the machine", read_cpu, None)
    for name, result in time_arms(engine, arms, clock, on_call, gauge, system_reader(gauge)):
        scenario, task, prompts = requested[name]
        try:
            if isinstance(result, Exception):
                raise result
            timed = _timed(scenario, task, prompts, arms[name], result, engine, started_at[name])
            emit(SoFar(timed))
            emit(_with_side_measurements(timed, task, arms[name].requests, result, engine, clock, before))
        except Exception as error:
            emit(failure_of(scenario, error, started_at.get(name, time.time()), engine))


def _timed(
    scenario: Scenario,
    task: GenerateTask,
    prompts: Prompts,
    arm: Arm,
    timing: Timing,
    engine: Engine,
    started: float,
) -> Measurement:
    pads = pad_share(arm.requests) if engine.info.pads else 0.0
    metrics = dict(timing.metrics) | engine_metrics(engine, timing.peak_memory_bytes) | {"pad_share": pads}
    facts = engine_facts(engine) | _prompt_facts(arm.requests) | dict(prompts.facts)
    facts["output_digest"] = digest(timing.new_ids)
    return Measurement(
        scenario=scenario,
        workload_id=workload_id(task),
        facts=facts,
        metrics=metrics,
        summaries=timing.summaries,
        samples=timing.samples,
        warnings=prompts.warnings + timing.warnings + _padding_warning(arm.requests) + engine.info.warnings,
        tags=dict(engine.info.tags),
        series={"token_latency_ms": timing.gaps_ms, **engine.info.series},
        steps=system_steps(timing.around),
        texts=dict(engine.info.texts),
        model_folder=engine.info.folder if scenario.keep_model else "",
        disturbed=disturbed(timing.samples.get("total_latency_s", ())),
        started_at=started,
        ended_at=time.time(),
    )


def _with_side_measurements(
    timed: Measurement,
    task: GenerateTask,
    requests: Sequence[GenerateRequest],
    timing: Timing,
    engine: Engine,
    clock: Clock,
    cpu_before: CpuReading | None,
) -> Measurement:
    """Add what is measured beside the timing, any of which may be missing."""
    beside = BestEffort()
    busy = beside.get("the load of the machine", lambda: busy_warning(cpu_before, read_cpu()), ())
    device, readings = engine.info.device, timing.readings
    causes: tuple[str, ...]
    causes, temporary = beside.get("what held the device back", partial(device_warnings, device, readings), ((), False))
    metrics, facts = dict(timed.metrics), dict(timed.facts)
    tokens = sum(timing.samples.get("tokens_generated", ()))
    joules, source = beside.get("the energy", partial(energy_figures, device, readings, tokens), ({}, {}))
    metrics, facts = metrics | joules, facts | source
    if (roof := roof_of(engine.info, beside)) is not None:
        roofline = partial(generation_roofline, engine.info, requests, timed.metrics, roof, task.use_cache)
        shares, roof_facts = beside.get("the roofline", roofline, ({}, {}))
        metrics, facts = metrics | shares, facts | roof_facts
    if task.compare_unpadded:
        differing = beside.get(
            "the comparison with unpadded rows",
            lambda: rows_differing(engine, requests, timing.new_ids),
            None,
        )
        if differing is not None:
            metrics["rows_equal_unpadded"] = 1 - len(differing) / len(timing.new_ids)
            facts["rows_differing"] = ",".join(map(str, differing)) or "none"
    sample = beside.get(
        "the sample text", lambda: "\n---\n".join(map(engine.decode, timing.new_ids[:SAMPLE_ROWS])), None
    )
    ids = [row for request in requests for row in request.prompt_ids]
    generations = beside.get("the generations", lambda: generations_of(engine, task.prompts, ids, timing, clock), ())
    return replace(
        timed,
        facts=facts,
        metrics=metrics,
        warnings=(*timed.warnings, *busy, *causes, *beside.warnings),
        sample_text=sample,
        generations=generations,
        disturbed=timed.disturbed or bool(busy) or temporary,
        ended_at=time.time(),
    )


def generations_of(
    engine: Engine, prompts: Sequence[str], ids: Sequence[Sequence[int]], timing: Timing, clock: Clock
) -> tuple[Generation, ...]:
    """Return each different output of each prompt, those of the repeat with the median duration first.

    Greedy decoding repeats itself, so these are usually one per prompt.

    Args:
        ids: the tokens that the engine read, per row.
    """
    to_epoch = time.time() - clock()
    durations = [sum(call.end - call.start for call in calls) for calls in timing.calls]
    typical = median(durations)
    # Row, repeat and call, by prompt and output.
    first_seen: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int, GenerationTrace]] = {}
    for repeat in sorted(range(len(durations)), key=lambda number: abs(durations[number] - typical)):
        of_rows = chain.from_iterable([call] * len(call.new_tokens) for call in timing.calls[repeat])
        for row, (new_ids, call) in enumerate(zip(timing.outputs[repeat], of_rows, strict=True)):
            first_seen.setdefault((tuple(ids[row]), new_ids), (row, repeat, call))
    return tuple(
        Generation(
            prompt=_cut(_as_read(engine, prompts[row], ids[row])),
            text=_cut(engine.decode(new_ids)),
            prompt_tokens=len(ids[row]),
            new_tokens=len(new_ids),
            started_at=to_epoch + call.start,
            seconds=call.end - call.start,
            first_token_s=call.stamps[0] - call.start if call.stamps else None,
            rows=len(call.new_tokens),
            repeat=repeat + 1,
        )
        for (_, new_ids), (row, repeat, call) in list(first_seen.items())[:MOST_GENERATIONS]
    )


def rows_differing(
    engine: Engine, requests: Sequence[GenerateRequest], new_ids: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Return the numbers (from 0) of the rows whose output differs when generated alone and unpadded."""
    rows = [(request, row) for request in requests for row in request.prompt_ids]
    return tuple(
        number
        for number, ((request, row), ids) in enumerate(zip(rows, new_ids, strict=True))
        if engine.generate(replace(request, prompt_ids=(row,), pad_to_multiple=1), lambda: None).new_ids[0] != ids
    )


def pad_share(requests: Sequence[GenerateRequest]) -> float:
    """Return the share (0 to 1) of pads among the prompt positions of all calls."""
    positions = sum(request.padded_length * len(request.prompt_ids) for request in requests)
    return 1 - sum(len(row) for request in requests for row in request.prompt_ids) / positions


def _prompt_facts(requests: Sequence[GenerateRequest]) -> dict[str, Scalar]:
    lengths = [len(row) for request in requests for row in request.prompt_ids]
    return {
        "batch_size": max(len(request.prompt_ids) for request in requests),
        "prompts": len(lengths),
        "prompt_tokens": max(lengths),
        "prompt_tokens_per_row": ",".join(map(str, lengths)),
        "prompt_tokens_total": sum(lengths),
        "decoding": "greedy",
    }


def _padding_warning(requests: Sequence[GenerateRequest]) -> tuple[str, ...]:
    if requests[0].padding_side != "right" or pad_share(requests) == 0:
        return ()
    return (
        "right padding: padded rows continue from their pads, so their text is not the model's: "
        "use padding_side=left for output that counts",
    )


def _as_read(engine: Engine, text: str, ids: Sequence[int]) -> str:
    """Return the requested text, or the decoded tokens if they were repeated, cut or replaced."""
    return text if tuple(engine.encode(text)) == tuple(ids) else engine.decode(ids)


def _cut(text: str) -> str:
    return truncate(text, _LONGEST, " ...")
