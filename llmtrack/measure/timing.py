"""Time generate calls: warm up, synchronize, stamp each step, repeat, and interleave what is compared.

The clock is an argument and the device synchronization belongs to the engine, so that a scripted engine
with a fake clock proves every number exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmtrack.engines.base import Engine, Generated, GenerateRequest
from llmtrack.measure.metrics import GenerationTrace, derive, token_gaps_ms
from llmtrack.measure.prompts import prompt_ids
from llmtrack.measure.statistics import findings, should_stop, summarize, summarize_rate
from llmtrack.scenario import GenerateTask, RepeatPolicy, Summary

Clock = Callable[[], float]

RATES = frozenset({"tokens_per_sec", "prefill_tokens_per_sec", "decode_tokens_per_sec"})


@dataclass(frozen=True)
class Arm:
    """One of the calls that are compared: what to generate and how often."""

    request: GenerateRequest
    policy: RepeatPolicy = RepeatPolicy()


@dataclass(frozen=True)
class Timing(Mapping[str, float]):
    """What timing one call returned; as a mapping, its headline metrics by name.

    Attributes:
        metrics: the median of each metric (`total_latency_s`, `tokens_generated`, `tokens_per_sec`,
            `avg_latency_per_token_ms`, `time_to_first_token_ms`, ...).
        summaries: its statistics.
        samples: its raw samples, in the order they were taken.
        gaps_ms: milliseconds before each token, the median over the repeats.
        new_ids: the token ids that the last repeat generated, per row.
        warnings: findings in words.
        peak_memory_bytes: peak over the counted calls, None if unknown.
    """

    metrics: Mapping[str, float]
    summaries: Mapping[str, Summary]
    samples: Mapping[str, tuple[float, ...]]
    gaps_ms: tuple[float, ...]
    new_ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...]
    peak_memory_bytes: int | None

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)


def time_generate(
    engine: Engine,
    prompts: str | Sequence[str],
    max_new_tokens: int = 32,
    *,
    use_cache: bool = True,
    padding_side: str = "left",
    ignore_eos: bool = True,
    policy: RepeatPolicy = RepeatPolicy(),
    clock: Clock = time.perf_counter,
) -> Timing:
    """Time greedy generation from one prompt, or from a batch of them.

    Args:
        engine: a loaded engine (`llmtrack.load_engine`).
        prompts: one text, or one per row of a batch.
        max_new_tokens: new tokens per row.
        use_cache: whether the KV cache is used.
        padding_side: side of the pads where the rows have unequal lengths.
        ignore_eos: suppress the end-of-sequence token, so that every row gets `max_new_tokens` tokens.
        policy: warm-up and repeats.
        clock: returns seconds; monotonic.

    Raises:
        ScenarioError: the prompt has no tokens, or prompt and output exceed the model's context.
    """
    texts = (prompts,) if isinstance(prompts, str) else tuple(prompts)
    task = GenerateTask(texts, None, max_new_tokens, use_cache, padding_side, ignore_eos)
    arm = Arm(request_for(engine, task), policy)
    ((_, result),) = time_arms(engine, {"": arm}, clock)
    if isinstance(result, Exception):
        raise result
    return result


def request_for(engine: Engine, task: GenerateTask) -> GenerateRequest:
    """Tokenize the prompts of a task.

    Raises:
        ScenarioError: a prompt has no tokens, or prompt and output exceed the model's context.
    """
    return GenerateRequest(
        prompt_ids=prompt_ids(engine, task),
        max_new_tokens=task.max_new_tokens,
        use_cache=task.use_cache,
        padding_side=task.padding_side,
        ignore_eos=task.ignore_eos,
    )


def time_arms(
    engine: Engine,
    arms: Mapping[str, Arm],
    clock: Clock = time.perf_counter,
    on_call: Callable[[str, int], None] = lambda name, repeat: None,
) -> Iterator[tuple[str, Timing | Exception]]:
    """Time several calls on one engine, interleaved: one repeat of each arm in turn.

    Whatever drifts (clock speed, temperature, other programs) then falls on all arms alike.

    Args:
        engine: the engine that all arms share.
        arms: the calls by name.
        clock: returns seconds; monotonic.
        on_call: told the arm and the number of the repeat before each call; 0 is the warm-up.

    Yields:
        Each arm's name with its timing as soon as it needs no further repeat, or with the exception that
        ended it; the other arms go on.
    """
    repeats: dict[str, _Repeats] = {}
    for name, arm in arms.items():
        try:
            for _ in range(arm.policy.warmup):
                on_call(name, 0)
                trace_generate(engine, arm.request, clock)
        except Exception as error:
            yield name, error
        else:
            repeats[name] = _Repeats()
    while repeats:
        for name in list(repeats):
            arm, done = arms[name], repeats[name]
            on_call(name, len(done.traces) + 1)
            try:
                done.add(engine, arm.request, clock)
            except Exception as error:
                del repeats[name]
                yield name, error
                continue
            if should_stop(done.durations, arm.policy):
                del repeats[name]
                yield name, done.timing(arm.policy)


def trace_generate(
    engine: Engine, request: GenerateRequest, clock: Clock = time.perf_counter
) -> tuple[GenerationTrace, Generated]:
    """Run one generate call and return its time stamps and token counts, with what it generated."""
    stamps: list[float] = []
    engine.synchronize()
    start = clock()
    generated = engine.generate(request, on_step=lambda: stamps.append(clock()))
    engine.synchronize()
    end = clock()
    trace = GenerationTrace(
        start=start,
        stamps=tuple(stamps),
        end=end,
        prompt_tokens=tuple(len(row) for row in request.prompt_ids),
        new_tokens=tuple(len(row) for row in generated.new_ids),
    )
    return trace, generated


class _Repeats:
    """The counted calls of one arm so far."""

    def __init__(self) -> None:
        self.traces: list[GenerationTrace] = []
        self.outputs: list[Generated] = []
        self.peaks: list[int] = []

    @property
    def durations(self) -> list[float]:
        return [trace.end - trace.start for trace in self.traces]

    def add(self, engine: Engine, request: GenerateRequest, clock: Clock) -> None:
        engine.reset_peak_memory()
        trace, generated = trace_generate(engine, request, clock)
        peak = engine.peak_memory_bytes()
        self.traces.append(trace)
        self.outputs.append(generated)
        if peak is not None:
            self.peaks.append(peak)

    def timing(self, policy: RepeatPolicy) -> Timing:
        derived = [derive(trace) for trace in self.traces]
        samples = {name: tuple(each[name] for each in derived) for name in derived[0]}
        summaries = {
            name: (summarize_rate if name in RATES else summarize)(values) for name, values in samples.items()
        }
        gaps = [token_gaps_ms(trace) for trace in self.traces]
        warnings = findings(self.durations, policy)
        if any(output != self.outputs[0] for output in self.outputs):
            warnings += (
                "the repeats generated different tokens although decoding is greedy: not deterministic",
            )
        return Timing(
            metrics={name: summary.median for name, summary in summaries.items()},
            summaries=summaries,
            samples=samples,
            gaps_ms=tuple(summarize(step).median for step in zip(*gaps, strict=False)),
            new_ids=self.outputs[-1].new_ids,
            warnings=warnings,
            peak_memory_bytes=max(self.peaks, default=None),
        )
