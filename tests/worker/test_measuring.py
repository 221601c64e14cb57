"""Measuring a group on a scripted engine: events, their order, and kinds of failures."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import replace

import pytest
import torch

from llmtrack.engines.options import loaded_as
from llmtrack.engines.registry import load_variant
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import MissingDependencyError, ModelLoadError, ScenarioError
from llmtrack.spec.events import Log, Progress, Warn
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.task import PerplexityTask, ShardTask
from llmtrack.worker.measuring import EngineCache, measure_group
from llmtrack.worker.outcomes import failure_kind
from tests.run.scenarios import MODEL, by_name, generating, scoring

pytestmark = pytest.mark.usefixtures("_known_ceilings")


class Loader:
    """Loads scripted engines, and counts them."""

    def __init__(self, *scripts, context_length=None, error=None):
        self.clock = FakeClock()
        self.scripts = scripts or (Script(0.030, 0.005),)
        self.context_length, self.error = context_length, error
        self.loaded, self.closed = [], 0

    def __call__(self, variant):
        self.loaded.append(variant.model)
        if self.error is not None:
            raise self.error
        engine = ScriptedEngine(self.clock, *self.scripts, context_length=self.context_length)
        engine.close = self._count
        return engine

    def _count(self):
        self.closed += 1


def measure(loader, *scenarios, engines=None):
    events = []
    measure_group(scenarios, engines or EngineCache(loader), events.append, loader.clock)
    return events


def as_text(events):
    """Return the events as short texts."""
    return [
        f"{event.scenario}: {event.step}"
        if isinstance(event, Progress)
        else type(event).__name__ + (f" {event.scenario.name}" if hasattr(event, "scenario") else "")
        for event in events
    ]


def test_scenarios_are_interleaved_and_emitted_as_they_end():
    events = measure(Loader(), generating("one"), generating("two"))
    assert as_text(events) == [
        "one: loading",
        "Log",
        "one: warm-up",
        "two: warm-up",
        "one: repeat 1",
        "two: repeat 1",
        "one: repeat 2",
        "SoFar",
        "Measurement one",
        "two: repeat 2",
        "SoFar",
        "Measurement two",
    ]
    assert events[1] == Log("Loaded: scripted | device=cpu | dtype=float32")


def test_whatever_loads_a_model_says_so_first():
    """It takes up to an hour: a worker that is silent meanwhile is not given up, nor shown at a step it has done."""
    reference = Variant("other")

    class Checked(Loader):
        def __call__(self, variant):
            assert as_text(events)[-1] == {"other": "it: loading the reference"}.get(variant.model, "it: loading")
            return super().__call__(variant)

    checked = QualityCheck(PerplexityTask(), reference)
    for scenario in (
        scoring("it"),
        replace(generating("it"), quality=checked),
        replace(scoring("it"), quality=checked),
        Scenario("it", MODEL, ShardTask(), quality=checked),
    ):
        events, load = [], Checked()
        measure_group([scenario], EngineCache(load), events.append, load.clock)
        assert len(load.loaded) == 1 + (scenario.quality is not None)


def test_a_measurement_by_hand():
    # One row of 4, 30 ms and 4 x 5 ms: 50 ms, 100 tokens/s. A step reads 1000 bytes of weights and the cache of
    # 4 + 5 / 2 tokens at 10 bytes: 1065 bytes in 5 ms at 1 MB/s: 21.3 %.
    outcome = by_name(measure(Loader(), generating("one")))["one"]
    expected = {
        "total_latency_s": 0.050,
        "tokens_per_sec": 100,
        "time_to_first_token_ms": 30,
        "inter_token_latency_ms": 5,
        "peak_memory_mib": 2,
        "model_size_mib": 1000 / 2**20,
        "memory_bandwidth_utilization": 1065 / 0.005 / 1e6,
        "copy_bandwidth_gb_per_s": 0.001,
    }
    assert {name: outcome.metrics[name] for name in expected} == pytest.approx(expected)
    assert outcome.summaries["total_latency_s"].n == 2
    assert outcome.series["token_latency_ms"] == pytest.approx((30, 5, 5, 5, 5))
    assert outcome.sample_text == "ABCDE"
    facts = {"model_id": "scripted", "device": "cpu", "dtype": "float32", "batch_size": 1}
    facts |= {"prompt_tokens": 4, "prompt_tokens_total": 4}
    assert {name: outcome.facts[name] for name in facts} == facts
    assert 0 < outcome.started_at <= outcome.ended_at


def test_pads_do_not_count_as_tokens():
    outcome = by_name(measure(Loader(), generating("one", prompts=("abcd", "ab"))))["one"]
    assert (outcome.facts["batch_size"], outcome.facts["prompt_tokens_total"]) == (2, 6)
    assert outcome.metrics["prefill_tokens_per_sec"] == pytest.approx(6 / 0.030)
    assert outcome.metrics["tokens_generated"] == 10


def test_without_a_cache_there_is_no_bandwidth_utilization():
    """Each step computes the whole sequence, so that the bytes read say nothing."""
    outcome = by_name(measure(Loader(), generating("one", use_cache=False)))["one"]
    assert "memory_bandwidth_utilization" not in outcome.metrics


@pytest.mark.parametrize(("side", "prompts", "warns"), [
    ("right", ("abcd", "ab"), True),
    ("right", ("abcd", "abcd"), False),
    ("left", ("abcd", "ab"), False),
])  # fmt: skip
def test_generating_from_right_pads_is_a_warning(side, prompts, warns):
    outcome = by_name(measure(Loader(), generating("one", prompts=prompts, padding_side=side)))["one"]
    assert any("right padding" in warning for warning in outcome.warnings) is warns


def test_perplexity_is_logged_by_batch_and_measured(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "abcd"}\n{"text": "ab"}\n{"text": "x"}\n')
    events = measure(Loader(), scoring("ppl", corpus=str(corpus), batch_size=1, verbose=True, max_length=3))
    lines = [event.text for event in events if isinstance(event, Log)]
    assert "in 2 batches" in lines[1]
    assert lines[2:] == [
        "batch 1/2 - loss 1.0000, tokens 2",
        "batch 2/2 - loss 1.0000, tokens 1",
        "average loss 1.0000 nats, perplexity 2.718 (3 tokens)",
    ]
    assert [event.done for event in events if isinstance(event, Progress) and event.done] == [0.5, 1.0]
    outcome = by_name(events)["ppl"]
    assert outcome.metrics["perplexity"] == pytest.approx(2.718281828)
    assert (outcome.metrics["tokens_scored"], outcome.metrics["tokens_truncated"]) == (3, 1)
    assert outcome.series["batch_loss"] == (1.0, 1.0)
    warnings = "\n".join(outcome.warnings)
    assert "1 tokens were cut from documents longer than 3" in warnings
    assert "1 document(s) of one token" in warnings


def test_without_verbose_no_batches_are_logged():
    events = measure(Loader(), scoring("ppl"))
    loaded, begun, result = (event.text for event in events if isinstance(event, Log))
    assert (loaded[:6], "scoring the perplexity" in begun, result[:12]) == ("Loaded", True, "average loss")


def test_scoring_is_announced_before_its_first_batch():
    """A worker that dies while it reads or tokenizes the corpus must not blame the previous scenario."""
    events = measure(Loader(), generating("one"), scoring("ppl", corpus="gone.txt"))
    assert as_text(events)[-3:] == ["Measurement one", "ppl: reading the corpus", "Failure ppl"]


def test_a_too_long_prompt_fails_alone():
    events = measure(
        Loader(context_length=16), generating("long", prompt_tokens=12), generating("fits", prompt_tokens=11)
    )
    failed, outcome = by_name(events)["long"], by_name(events)["fits"]
    assert isinstance(failed, Failure)
    assert failed.kind == "too_long"
    assert "a prompt of 12 tokens and 5 new ones exceed the context of 16" in failed.reason
    assert "ask for at most 11 prompt tokens" in failed.reason
    assert failed.facts["model_id"] == "scripted"
    assert isinstance(outcome, Measurement)


def test_an_error_fails_its_scenario_only():
    """The first call of the second arm runs out of memory; the other arms succeed."""
    good, bad = Script(0.03, 0.005), Script(0, 0, error=RuntimeError("CUDA out of memory. Tried to allocate"))
    events = measure(Loader(good, bad, good), generating("one"), generating("two"), generating("three"))
    assert {name: type(outcome).__name__ for name, outcome in by_name(events).items()} == {
        "two": "Failure",
        "one": "Measurement",
        "three": "Measurement",
    }
    failed = by_name(events)["two"]
    assert failed.kind == "out_of_memory"
    assert "Traceback" in failed.details
    assert failed.started_at > 0


@pytest.mark.parametrize(
    "error", [ModelLoadError("no model could be loaded, tried 2:\n a\n b"), MissingDependencyError("pip")]
)
def test_a_model_that_cannot_be_loaded_fails_every_scenario(error):
    loader = Loader(error=error)
    events = measure(loader, generating("one"), scoring("two"))
    assert as_text(events) == ["one: loading", "Failure one", "Failure two"]
    assert {event.kind for event in events[1:]} == {"load"}
    assert all("\n" not in event.reason for event in events[1:])
    assert loader.loaded == ["synthetic:tiny"]


def test_out_of_memory_while_loading_keeps_its_kind():
    outcome = by_name(measure(Loader(error=MemoryError()), generating("one")))["one"]
    assert (outcome.kind, outcome.reason) == ("out_of_memory", "MemoryError")


def test_a_missing_corpus_fails_its_scenario_only():
    events = measure(Loader(), scoring("gone", corpus="gone.txt"), scoring("there"))
    assert isinstance(by_name(events)["gone"], Failure)
    assert "gone.txt" in by_name(events)["gone"].reason
    assert isinstance(by_name(events)["there"], Measurement)


def test_an_engine_is_reused_for_its_variant_and_freed_for_another():
    loader = Loader()
    engines = EngineCache(loader)
    first = measure(loader, generating("one"), engines=engines)
    second = measure(loader, generating("two"), engines=engines)
    assert loader.loaded == ["synthetic:tiny"]
    assert as_text(first)[:2] == ["one: loading", "Log"]
    assert as_text(second)[0] == "two: warm-up", "what was loaded is said once"
    measure(loader, generating("three", Variant("other")), engines=engines)
    assert (loader.loaded, loader.closed) == (["synthetic:tiny", "other"], 1)
    engines.close()
    assert loader.closed == 2


def test_engine_warnings_are_emitted_once_and_tracked_with_each():
    loader = Loader()

    class Warned(ScriptedEngine):
        @property
        def info(self):
            from dataclasses import replace

            return replace(super().info, warnings=("random weights",))

    engines = EngineCache(lambda variant: Warned(loader.clock, *loader.scripts))
    events = measure(loader, generating("one"), generating("two"), engines=engines)
    assert [event for event in events if isinstance(event, Warn)] == [Warn("random weights")]
    assert all("random weights" in outcome.warnings for outcome in by_name(events).values())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ScenarioError("x", kind="too_long"), "too_long"),
        (ScenarioError("x"), "error"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("CUDA out of memory."), "out_of_memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("HIP"), "out_of_memory"),
        (NotImplementedError("not for Half"), "unsupported"),
        (RuntimeError("a memory of summer"), "error"),
        (ValueError("x"), "error"),
    ],
)
def test_kinds_of_failures(error, kind):
    assert failure_kind(error) == kind


def with_quality(name, reference=None):
    check = QualityCheck(PerplexityTask(corpus="builtin", max_length=8), reference, reference_tokens=20)
    return dataclasses.replace(generating(name), quality=check)


def test_quality_is_part_of_the_same_measurement():
    loader = Loader()
    reference = Variant("reference")
    (outcome,) = by_name(measure(loader, with_quality("one", reference))).values()
    # Every token scores 1 nat, whatever the speed; both engines find all tokens alike.
    assert outcome.metrics["loss"] == 1.0
    assert outcome.metrics["time_to_first_token_ms"] == pytest.approx(30.0)
    assert outcome.metrics["kl_divergence"] == 0.0
    assert outcome.metrics["reference_perplexity_ratio"] == 1.0
    assert outcome.metrics["tokens_compared"] == 20
    assert outcome.facts["reference"] == "reference torch/float32"
    assert outcome.facts["reference_tokens"] == 20
    assert {key for key in outcome.tags if key.startswith("reference_")} == {
        f"reference_{key}" for key in outcome.tags if key.endswith("_digest") and not key.startswith("reference_")
    }
    assert outcome.facts["corpus"] == "builtin"
    assert loader.loaded == [generating("one").variant.model, "reference"]
    assert loader.closed == 1  # the reference; the engine itself stays for what comes next


def test_all_timing_precedes_scoring():
    events = measure(Loader(), with_quality("one"), generating("two"))
    steps = [event.step for event in events if isinstance(event, Progress)]
    assert steps.index("reading the corpus") > max(n for n, step in enumerate(steps) if step.startswith("repeat"))


def test_the_reference_is_not_compared_with_itself():
    scenario = with_quality("one", generating("one").variant)
    loader = Loader()
    (outcome,) = by_name(measure(loader, scenario)).values()
    assert "kl_divergence" not in outcome.metrics
    assert len(loader.loaded) == 1


def test_speed_is_kept_if_scoring_fails():
    check = QualityCheck(PerplexityTask(corpus="no/such/file.txt"))
    scenario = dataclasses.replace(generating("one"), quality=check)
    (outcome,) = by_name(measure(Loader(), scenario)).values()
    assert isinstance(outcome, Measurement)
    assert outcome.metrics["tokens_per_sec"] > 0
    assert "loss" not in outcome.metrics
    assert any("its quality could not be scored" in warning for warning in outcome.warnings)


def test_a_reference_that_cannot_be_loaded_leaves_a_warning():
    loader = Loader()
    load = EngineCache(lambda variant: loader(variant) if variant.model != "gone" else 1 / 0)
    (outcome,) = by_name(measure(loader, with_quality("one", Variant("gone")), engines=load)).values()
    assert outcome.metrics["loss"] == 1.0
    assert any("could not be compared with the reference" in warning for warning in outcome.warnings)


def test_a_scenario_error_on_loading_keeps_its_kind():
    failures = by_name(measure(Loader(error=ScenarioError("no such operator", kind="unsupported")), generating("one")))
    assert failures["one"].kind == "unsupported"


def test_slow_preparations_are_logged():
    loader = Loader()

    def load(variant):
        logging.getLogger("llmtrack.quantize").info("exporting ...")
        return loader(variant)

    events = measure(loader, generating("one"), engines=EngineCache(load))
    assert Log("  exporting ...") in events


@pytest.mark.parametrize(("pads", "share"), [(True, 0.25), (False, 0.0)])
def test_the_pad_share_counts_only_computed_pads(pads, share):
    class Packing(Loader):
        def __call__(self, variant):
            engine = super().__call__(variant)
            engine._info = dataclasses.replace(engine.info, pads=pads)
            return engine

    result = by_name(measure(Packing(), generating("one", prompts=("abcd", "ab"))))["one"]
    assert result.metrics["pad_share"] == share


def variant(backend="torch", **options):
    return Variant(model="synthetic:tiny", backend=backend, device="cpu", options=tuple(sorted(options.items())))


def test_one_loaded_model_serves_each_number_of_threads():
    engines = EngineCache(load_variant)
    two, fresh = engines.get(variant(threads=2))
    assert (fresh, two.info.facts["threads"]) == (True, 2)
    one, fresh = engines.get(variant(threads=1))
    assert (fresh, one is two, one.info.facts["threads"]) == (False, True, 1)
    seen = []
    forward = one.model.forward
    one.model.forward = lambda *args, **named: (seen.append(torch.get_num_threads()), forward(*args, **named))[1]
    one.next_token_logits([1, 2])
    default, fresh = engines.get(variant())
    assert (fresh, default.info.facts["threads"]) == (False, torch.get_num_threads())
    default.next_token_logits([1, 2])
    assert seen == [1, torch.get_num_threads()]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (variant(threads=1), replace(variant(threads=2), dtype="bfloat16")),
        (variant(threads=1, compile="default"), variant(threads=2, compile="default")),
        (variant(threads=1), variant(threads=1, compile="default")),
        (variant(threads=1, tensor_parallel=2), variant(threads=2, tensor_parallel=2)),
        (variant("onnx", threads=1), variant("onnx", threads=2)),
        (variant("plugin", threads=1), variant("plugin", threads=2)),
    ],
)
def test_variants_that_load_differently_share_no_model(one, other):
    assert loaded_as(one) != loaded_as(other)
    loaded = []
    engines = EngineCache(lambda variant: (loaded.append(variant), ScriptedEngine(FakeClock(), Script(0.01, 0.01)))[1])
    engines.get(one)
    engines.get(other)
    assert loaded == [one, other]


def test_an_engine_with_fixed_threads_is_reloaded():
    loaded = []
    engines = EngineCache(lambda variant: (loaded.append(variant), ScriptedEngine(FakeClock(), Script(0.01, 0.01)))[1])
    engines.get(variant(threads=1))
    engines.get(variant(threads=2))
    assert loaded == [variant(threads=1), variant(threads=2)]
