"""Outcomes to track."""

from __future__ import annotations

from typing import Any

from llmtrack.spec.outcome import Failure, Measurement, Summary
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask
from llmtrack.tracking.write.tracker import Study, Tracker

CORPUS = {"corpus": "my_texts.jsonl", "corpus_digest": "0123456789abcdef"}
"""Params of a run that scores a text."""
ENVIRONMENT = {"version.torch": "2.13.0", "threads": "2", "cpu": "A CPU"}
SUMMARY = Summary(n=12, median=1.5, ci_low=1.4, ci_high=1.6, mean=1.52, sd=0.1, p90=1.7)


def scenario(name: str = "p64", **changes: Any) -> Scenario:
    task = GenerateTask(("one", "two"), prompt_tokens=64, max_new_tokens=8)
    return Scenario(name, Variant(model="packaged:tiny"), task, **changes)


def perplexity(name: str = "ppl") -> Scenario:
    return Scenario(name, Variant(model="packaged:tiny"), PerplexityTask())


def measurement(name: str = "p64", **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "scenario": scenario(name),
        "workload_id": "w1",
        "facts": {"model_id": "packaged:tiny", "device": "cpu", "dtype": "float32", "batch_size": 2},
        "metrics": {"total_latency_s": 1.5, "tokens_per_sec": 10.25},
        "summaries": {"total_latency_s": SUMMARY},
        "samples": {"total_latency_s": (1.4, 1.5, 1.6)},
        "warnings": ("samples drift",),
        "sample_text": "Once upon a time",
        "tags": {"weights_digest": "abc"},
        "series": {"token_latency_ms": (1.0, 2.0, 3.0)},
        "started_at": 1_790_000_000.5,
        "ended_at": 1_790_000_010.25,
    }
    return Measurement(**{**values, **changes})


def failure(name: str = "p64", **changes: Any) -> Failure:
    values: dict[str, Any] = {
        "scenario": scenario(name),
        "kind": "out_of_memory",
        "reason": "out of memory:\nneeds 9 GiB",
        "details": "Traceback ...",
        "facts": {"device": "cpu"},
        "started_at": 1_790_000_000.0,
        "ended_at": 1_790_000_001.0,
    }
    return Failure(**{**values, **changes})


def start_study(tracker: Tracker, **changes: Any) -> Study:
    values: dict[str, Any] = {
        "experiment": "precision",
        "question": "Is bfloat16 faster?",
        "settings": {"dtypes": "fp32,bf16", "warmup": 1},
        "environment": ENVIRONMENT,
    }
    return tracker.start_study(**{**values, **changes})
