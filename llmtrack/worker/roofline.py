"""Roofline metrics of a measurement: bounds, and the shares of them that are reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llmtrack.engine import EngineInfo, GenerateRequest
from llmtrack.host.formatting import MIB
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.formulas import memory_bandwidth_utilization
from llmtrack.measure.roofline import (
    Roof,
    Stage,
    decode_stage,
    prefill_stage,
    scoring_work,
    share_of_rate,
    stage,
)
from llmtrack.spec.scenario import Scalar

Figures = tuple[dict[str, float], dict[str, Scalar]]


def roof_of(info: EngineInfo, beside: BestEffort) -> Roof | None:
    """Return the ceilings of an engine's device in its arithmetic, or None without a bandwidth."""
    # Imported late, so that tests can replace them and reading results does not need them.
    from llmtrack.measure import ceilings

    moved = beside.get("the copy bandwidth", lambda: ceilings.copy_bandwidth(info.device), None)
    if moved is None:
        return None
    rate = None
    if info.operations is not None and info.arithmetic:
        rate = beside.get(
            "the rate of matrix products", lambda: ceilings.matrix_rate(info.device, info.arithmetic), None
        )
    # Devices that share each layer work in parallel.
    whole = None if rate is None else rate * info.parallel
    return Roof(moved * info.parallel, whole, ceilings.doubts(info.device))


def of_generation(
    info: EngineInfo,
    requests: Sequence[GenerateRequest],
    metrics: Mapping[str, float],
    roof: Roof,
    use_cache: bool = True,
) -> Figures:
    """Return metrics and facts of the prefill and decode steps of a timed scenario.

    Args:
        requests: the calls of a repeat.
        metrics: the timing.
        roof: the device's ceilings.
        use_cache: without a cache, each step is a full pass, to which the decode bound does not apply.
    """
    figures, facts = _ceilings(roof), _conditions(info, roof)
    first, step = metrics.get("time_to_first_token_ms"), metrics.get("inter_token_latency_ms")
    if first:
        _add(figures, facts, "prefill", prefill_stage(info, requests, roof), first / 1000, roof)
    if step and use_cache:
        decoding = decode_stage(info, requests, roof)
        _add(figures, facts, "decode", decoding, step / 1000, roof)
        if not roof.doubt:
            figures["memory_bandwidth_utilization"] = memory_bandwidth_utilization(
                decoding.work.bytes, step / 1000, roof.bandwidth
            )
    return figures, facts


def of_scoring(info: EngineInfo, read: Iterable[Sequence[int]], seconds: float, roof: Roof) -> Figures:
    """Return metrics and facts of scoring a corpus.

    Args:
        read: tokens read of each row, per batch.
        seconds: total duration.
        roof: the device's ceilings.
    """
    figures, facts = _ceilings(roof), _conditions(info, roof)
    if seconds > 0:
        _add(figures, facts, "score", stage([scoring_work(info, read)], roof), seconds, roof)
    return figures, facts


def _add(
    figures: dict[str, float],
    facts: dict[str, Scalar],
    name: str,
    done: Stage,
    seconds: float,
    roof: Roof,
) -> None:
    """Add the work of a stage and its share of the ceilings, unless they are in doubt or exceeded."""
    figures[f"{name}_mib"] = done.work.bytes / MIB
    if done.work.operations is not None:
        figures[f"{name}_gflop"] = done.work.operations / 1e9
    if roof.doubt:
        return
    if done.floor_s > seconds:
        # The ceilings were measured differently from how the model computes, or its weights fit into a cache.
        beaten = f"{name} took {seconds / done.floor_s:.2f} times the least that the measured ceilings allow"
        facts["ceilings_in_doubt"] = "; ".join(
            str(doubt) for doubt in (facts.get("ceilings_in_doubt"), beaten) if doubt
        )
        return
    figures[f"{name}_floor_ms"] = 1000 * done.floor_s
    figures[f"{name}_floor_share"] = done.floor_s / seconds
    share = share_of_rate(done.work, seconds, roof)
    if share is not None:
        figures[f"{name}_flops_utilization"] = share
    if done.bound:
        facts[f"{name}_bound"] = done.bound


def _ceilings(roof: Roof) -> dict[str, float]:
    rate = {} if roof.rate is None else {"matrix_tflop_per_s": roof.rate / 1e12}
    return {"copy_bandwidth_gb_per_s": roof.bandwidth / 1e9, **rate}


def _conditions(info: EngineInfo, roof: Roof) -> dict[str, Scalar]:
    facts: dict[str, Scalar] = {"ceilings_in_doubt": roof.doubt, "arithmetic": info.arithmetic}
    return {name: value for name, value in facts.items() if value}
