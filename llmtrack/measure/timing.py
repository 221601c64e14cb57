"""Time generate calls: warm up, synchronize, stamp each step, repeat, and interleave what is compared.

The clock is an argument and the device synchronization belongs to the engine, so that a scripted engine
with a fake clock proves every number exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest

from llmtrack.engine import Engine, Generated, GenerateRequest, Preparing
from llmtrack.errors import UsageError
from llmtrack.measure.beside import Beside
from llmtrack.measure.finite import check_finite
from llmtrack.measure.formulas import GenerationTrace, derive, token_gaps_ms
from llmtrack.measure.gauge import Gauge, Interval
from llmtrack.measure.prompts import prompt_ids
from llmtrack.measure.room import check_batch
from llmtrack.measure.statistics import findings, should_stop, summarize, summarize_rate
from llmtrack.metrics import metric
from llmtrack.spec.outcome import Summary
from llmtrack.spec.parameter import whole_number
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.spec.text_args import texts

Clock = Callable[[], float]


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared: the calls that make up a repeat, and how often to repeat them."""

    requests: tuple[GenerateRequest, ...]
    policy: RepeatPolicy = RepeatPolicy()


@dataclass(frozen=True)
class Timing(Mapping[str, float]):
    """What timing one call returned; as a mapping, its headline metrics by name.

    Attributes:
        metrics: the median of each metric (`total_latency_s`, `tokens_generated`, `tokens_per_sec`,
            `avg_latency_per_token_ms`, `time_to_first_token_ms`, ...).
        summaries: its statistics.
        samples: its raw samples, in the order they were taken.
        gaps_ms: milliseconds before each token, the median over all calls.
        new_ids: the token ids that the last repeat generated, per row, in the order of the prompts.
        warnings: findings in words.
        peak_memory_bytes: peak over the counted calls, None if unknown.
        readings: what the device's counters said before and after each repeat; none where nothing reads them.
    """

    metrics: Mapping[str, float]
    summaries: Mapping[str, Summary]
    samples: Mapping[str, tuple[float, ...]]
    gaps_ms: tuple[float, ...]
    new_ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...]
    peak_memory_bytes: int | None
    readings: tuple[Interval, ...] = ()

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
        UsageError: there is no prompt, or what is given is none.
        ScenarioError: the prompt has no tokens, or prompt and output exceed the model's context.
    """
    rows = texts("prompt", prompts)
    if not rows:
        raise UsageError("there is no prompt: give one text at least")
    new_tokens = whole_number("max_new_tokens", max_new_tokens)
    task = GenerateTask(rows, None, new_tokens, use_cache, padding_side, ignore_eos)
    arm = Arm(requests_for(task, prompt_ids(engine, task)), policy)
    ((_, result),) = time_arms(engine, {"": arm}, clock)
    if isinstance(result, Exception):
        raise result
    return result


def requests_for(task: GenerateTask, rows: Sequence[tuple[int, ...]]) -> tuple[GenerateRequest, ...]:
    """Divide the tokenized prompts of a task into batches, in their order."""
    size = task.batch_size or len(rows)
    return tuple(
        GenerateRequest(
            prompt_ids=tuple(rows[first : first + size]),
            max_new_tokens=task.max_new_tokens,
            use_cache=task.use_cache,
            padding_side=task.padding_side,
            ignore_eos=task.ignore_eos,
            pad_to_multiple=task.pad_to_multiple,
        )
        for first in range(0, len(rows), size)
    )


def time_arms(
    engine: Engine,
    arms: Mapping[str, Arm],
    clock: Clock = time.perf_counter,
    on_call: Callable[[str, int], None] = lambda name, repeat: None,
    gauge: Gauge | None = None,
) -> Iterator[tuple[str, Timing | Exception]]:
    """Time several arms on one engine, interleaved: one repeat of each in turn.

    Whatever drifts (clock speed, temperature, other programs) then falls on all arms alike.

    Args:
        engine: the engine that all arms share.
        arms: what is compared, by name.
        clock: returns seconds; monotonic.
        on_call: told the arm and the number of the repeat before each call; 0 is the warm-up. What it raises ends
            the arm.
        gauge: reads the device's counters before and after each counted repeat, outside of what is timed.

    Yields:
        Each arm's name with its timing as soon as it needs no further repeat, or with the exception that
        ended it; the other arms go on. An arm whose logits are not finite ends after its first call.
    """
    repeats: dict[str, _Repeats] = {}
    for name, arm in arms.items():
        try:
            repeats[name] = _warm_up(engine, arm, clock, partial(on_call, name, 0))
        except Exception as error:
            yield name, error
    while repeats:
        for name in list(repeats):
            arm, done = arms[name], repeats[name]
            result: Timing | Exception | None
            try:
                on_call(name, len(done.repeats) + 1)
                done.add(engine, arm.requests, clock, gauge)
                stop = should_stop(done.durations, arm.policy, done.warmup_s)
                result = done.timing(arm.policy) if stop else None
            except Exception as error:
                result = error
            if result is not None:
                del repeats[name]
                yield name, result


def _warm_up(engine: Engine, arm: Arm, clock: Clock, on_call: Callable[[], None]) -> _Repeats:
    """Make the uncounted calls, and return what the counted ones are added to.

    They keep to the cap on time, too: no further round starts that would end beyond it.
    """
    for request in arm.requests:
        check_batch(
            engine.info,
            len(request.prompt_ids),
            max(map(len, request.prompt_ids)),
            request.max_new_tokens,
            padded=request.padded_length,
            cached=request.use_cache,
        )
    rounds = _Repeats()
    for _ in range(arm.policy.warmup):
        on_call()
        rounds.add(engine, arm.requests, clock)
        if math.fsum(rounds.durations) + max(rounds.durations) > arm.policy.max_seconds:
            break
    if not rounds.repeats:
        return rounds
    return _Repeats(rounds.durations[-1], rounds.warnings, rounds.compile_time_s)


def trace_generate(
    engine: Engine, request: GenerateRequest, clock: Clock = time.perf_counter
) -> tuple[GenerationTrace, Generated]:
    """Run one generate call and return its time stamps and token counts, with what it generated.

    Where the device stamps its steps itself, they are read after the end.
    """
    told: list[float] = []
    engine.synchronize()
    start = clock()
    generated = engine.generate(request, on_step=lambda: told.append(clock()))
    engine.synchronize()
    end = clock()
    by_device = generated.step_seconds
    stamps = told if by_device is None else [start + seconds for seconds in by_device()]
    trace = GenerationTrace(
        start=start,
        stamps=tuple(stamps),
        end=end,
        prompt_tokens=tuple(len(row) for row in request.prompt_ids),
        new_tokens=tuple(len(row) for row in generated.new_ids),
    )
    return trace, generated


def _seconds(call: GenerationTrace) -> float:
    return call.end - call.start


class _Repeats:
    """The repeats of one arm so far: the calls of each, what they generated, and the peak memory.

    The first call of an arm is also looked at: whether what it generated came from finite logits. Where there is a
    warm-up, that is its first round.

    Args:
        warmup_s: seconds of the last round of the warm-up; None if there was none.
        warnings: what the warm-up found, in words.
        compile_time_s: seconds that the engine took to compile for it.
    """

    def __init__(
        self,
        warmup_s: float | None = None,
        warnings: tuple[str, ...] = (),
        compile_time_s: float = 0.0,
    ) -> None:
        self.warmup_s = warmup_s
        self.warnings = warnings
        self.compile_time_s = compile_time_s
        self.compiled_late = 0
        self.repeats: list[tuple[GenerationTrace, ...]] = []
        self.outputs: list[tuple[tuple[int, ...], ...]] = []
        self.peaks: list[int] = []
        self.readings: list[Interval] = []
        self.beside = Beside()

    @property
    def durations(self) -> list[float]:
        return [math.fsum(map(_seconds, calls)) for calls in self.repeats]

    def add(
        self,
        engine: Engine,
        requests: Sequence[GenerateRequest],
        clock: Clock,
        gauge: Gauge | None = None,
    ) -> None:
        self.beside.get("the peak memory", engine.reset_peak_memory, None)
        for request in requests:
            self._prepare(engine, request)
        before = self.beside.get("the state of the device", gauge.read, None) if gauge else None
        done = [self._traced(engine, request, clock) for request in requests]
        after = self.beside.get("the state of the device", gauge.read, None) if gauge else None
        if before is not None and after is not None:
            self.readings.append((before, after))
        peak = self.beside.get("the peak memory", engine.peak_memory_bytes, None)
        self.repeats.append(tuple(trace for trace, _ in done))
        self.outputs.append(tuple(row for _, generated in done for row in generated.new_ids))
        if peak is not None:
            self.peaks.append(peak)
        if self.warmup_s is None and len(self.repeats) == 1:
            self.warnings = check_finite(engine, requests, self.outputs[0])

    def _traced(self, engine: Engine, request: GenerateRequest, clock: Clock) -> tuple[GenerationTrace, Generated]:
        """Run one call; where an engine cannot keep what all of them need, it compiles once more, before the time runs."""
        self._prepare(engine, request)
        return trace_generate(engine, request, clock)

    def _prepare(self, engine: Engine, request: GenerateRequest) -> None:
        """Let the engine compile what the shape of a call needs."""
        if isinstance(engine, Preparing) and (seconds := engine.prepare(request)):
            self.compile_time_s += seconds
            self.compiled_late += self.warmup_s is not None or bool(self.repeats)

    def timing(self, policy: RepeatPolicy) -> Timing:
        derived = [derive(*calls) for calls in self.repeats]
        # A repeat that ended early may lack what needs a second step: each metric has the samples that there are.
        names = dict.fromkeys(chain.from_iterable(derived))
        samples = {name: tuple(each[name] for each in derived if name in each) for name in names}
        summaries = {
            name: (summarize_rate if metric(name).rate else summarize)(values) for name, values in samples.items()
        }
        gaps = [token_gaps_ms(call) for calls in self.repeats for call in calls]
        warnings = self.warnings + findings(self.durations, policy)
        if any(output != self.outputs[0] for output in self.outputs):
            warnings += ("the repeats generated different tokens although decoding is greedy: not deterministic",)
        if self.compiled_late:
            warnings += (
                f"compiled {self.compiled_late} times again between counted calls, outside of their time: the shapes are too many "
                "to be kept",
            )
        metrics = {name: summary.median for name, summary in summaries.items()}
        if self.compile_time_s:
            metrics["compile_time_s"] = self.compile_time_s
        return Timing(
            metrics=metrics,
            summaries=summaries,
            samples=samples,
            gaps_ms=tuple(summarize([gap for gap in step if gap is not None]).median for step in zip_longest(*gaps)),
            new_ids=self.outputs[-1],
            warnings=warnings + self.beside.warnings,
            # Of repeats whose peak is unknown, the highest may be one.
            peak_memory_bytes=max(self.peaks, default=None) if len(self.peaks) == len(self.repeats) else None,
            readings=tuple(self.readings),
        )
