"""Each classic mistake of a benchmark, made in the timing code on purpose, must fail a check of known answers."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from llmtrack.measure import formulas as metrics
from llmtrack.measure import timing
from tests.measure.exact import CHECKS

# Mistake: module, source text, and its replacement.
MUTATIONS = {
    "prefill counted as decode": (metrics, "call.stamps[-1] - call.stamps[0]", "call.stamps[-1] - call.start"),
    "N steps instead of N-1": (
        metrics,
        "decoding / sum(len(call.stamps) - 1 for call in calls)",
        "decoding / sum(len(call.stamps) for call in calls)",
    ),
    "first tokens counted as decoded": (metrics, "(generated - rows) / decoding", "generated / decoding"),
    "batch counted twice": (
        metrics,
        "generated = sum(sum(call.new_tokens) for call in calls)",
        "generated = rows * sum(sum(call.new_tokens) for call in calls)",
    ),
    "batch forgotten in ms/token": (metrics, "1000 * row_seconds / generated", "1000 * total / generated"),
    "prompt of one row only": (
        metrics,
        "sum(sum(call.prompt_tokens) for call in calls)",
        "sum(call.prompt_tokens[0] for call in calls)",
    ),
    "decode instead of whole call": (
        metrics,
        "total = math.fsum(call.end - call.start for call in calls)",
        "total = math.fsum(call.stamps[-1] - call.start for call in calls)",
    ),
    "calls of a repeat forgotten": (timing, "for request in requests]", "for request in requests[:1]]"),
    "samples of one repeat leak into the next": (
        timing,
        "    stamps: list[float] = []\n",
        "    stamps = trace_generate.__dict__.setdefault('stamps', [])\n",
    ),
    "generate called twice": (
        timing,
        "    generated = engine.generate(request, on_step=lambda: stamps.append(clock()))\n",
        "    engine.generate(request, on_step=lambda: None)\n"
        "    generated = engine.generate(request, on_step=lambda: stamps.append(clock()))\n",
    ),
    "synchronization left out after the call": (
        timing,
        "on_step=lambda: stamps.append(clock()))\n    engine.synchronize()\n",
        "on_step=lambda: stamps.append(clock()))\n",
    ),
    "synchronization left out before the call": (timing, "    engine.synchronize()\n    start", "    start"),
    "pads counted": (
        timing,
        "new_tokens=tuple(len(row) for row in generated.new_ids)",
        "new_tokens=(max(len(row) for row in generated.new_ids),) * len(generated.new_ids)",
    ),
    "warm-up counted": (
        timing,
        "return _Repeats(warmup.durations[-1], warmup.warnings, warmup.compile_time_s)",
        "return warmup",
    ),
    "no warm-up": (timing, "for _ in range(arm.policy.warmup):", "for _ in range(0):"),
    "mean of rates instead of time": (timing, "(summarize_rate if metric(name).rate else summarize)", "(summarize)"),
}
# Detected by a separate test, which needs an even number of unequal repeats.
DETECTED_ELSEWHERE = {"mean of rates instead of time"}


def load_mutant(module: ModuleType, before: str, after: str) -> ModuleType:
    """Return the timing module with a mistake in it or in the formulas."""
    source = inspect.getsource(module)
    assert source.count(before) == 1, f"the code has changed: it contains {before!r} {source.count(before)} times"
    mutant = ModuleType(module.__name__)
    exec(compile(source.replace(before, after), f"<mutant of {module.__name__}>", "exec"), mutant.__dict__)
    if module is timing:
        return mutant
    # A copy of the timing module that uses the mutated formulas.
    copy = ModuleType(timing.__name__)
    exec(compile(inspect.getsource(timing), f"<copy of {timing.__name__}>", "exec"), copy.__dict__)
    copy.__dict__.update({name: getattr(mutant, name) for name in ("derive", "token_gaps_ms", "GenerationTrace")})
    return copy


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in DETECTED_ELSEWHERE])
def test_a_mistake_fails_a_check(name):
    mutant = load_mutant(*MUTATIONS[name])
    failed = []
    for check in CHECKS:
        try:
            check(mutant)
        except Exception:
            failed.append(check.__name__)
    assert failed, f"no check detects: {name}"


def test_unequal_repeats_detect_a_mean_of_rates():
    mutant = load_mutant(*MUTATIONS["mean of rates instead of time"])
    from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
    from llmtrack.spec.task import RepeatPolicy
    from tests.measure.exact import request, run

    def product(module):
        engine = ScriptedEngine(FakeClock(), Script(0.1, 0.0), Script(0.3, 0.0))
        result = run(
            module, engine, request(1, 4, 5), RepeatPolicy(warmup=0, min_repeats=2, min_seconds=0, max_repeats=2)
        )
        return result["tokens_per_sec"] * result["total_latency_s"]

    assert product(timing) == pytest.approx(5)
    assert product(mutant) != pytest.approx(5)


def test_without_a_mistake_every_check_passes():
    copy = load_mutant(timing, "stamps: list[float] = []", "stamps: list[float] = list()")
    for check in CHECKS:
        check(copy)
