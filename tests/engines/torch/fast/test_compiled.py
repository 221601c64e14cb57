"""A step over a static cache equals eager greedy decoding; a stub compiler saves compile time."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch.fast.compiled import MOST_SHAPES, _highest
from llmtrack.engines.torch.fast.fused import unfusible
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.errors import ScenarioError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.measure.timing import Arm, time_arms
from llmtrack.models import synthetic
from llmtrack.spec.task import RepeatPolicy
from llmtrack.testing.engines import generate
from tests.engines.models import RememberedProbes, bigram_engine, chain, small

PROMPTS = tuple(tuple(text.encode()) for text in ("The harbour", "Boats come in with the tide", "x"))

FUSED = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {}),
    ("qwen3", {}),
    *([("gemma", {"tie_word_embeddings": False})] if TRANSFORMERS_MAJOR >= 5 else []),
    (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
]
PLAIN = [
    # Its body scales the embedding; in transformers 5 the embedding does, as in a Llama.
    *([("gemma", {"tie_word_embeddings": False})] if TRANSFORMERS_MAJOR < 5 else []),
    ("granite", {"residual_multiplier": 0.4, "embedding_multiplier": 3.0}),
    ("gpt_neox", {"num_key_value_heads": ...}),
    ("phi3", {}),  # already has fused products
]


def compiled(engine: TorchEngine) -> TorchEngine:
    """Return an engine of the same model that decodes over a static cache."""
    return TorchEngine(
        engine.model,
        engine.tokenizer,
        compile="default",
        compiler=lambda run: run,
        probe_cache=RememberedProbes(),
    )


@pytest.mark.slow(1)
@pytest.mark.parametrize(("architecture", "settings"), FUSED + PLAIN)
def test_a_compiled_step_equals_eager_decoding(architecture, settings):
    eager = small(architecture, **settings)
    expected = [generate(eager, rows, 12) for rows in (PROMPTS[:1], PROMPTS)]
    engine = compiled(eager)
    kind = "fused" if (architecture, settings) in FUSED else "as it is"
    assert engine.info.facts["decode_step"] == f"compiled, {kind}", engine.info.warnings
    assert any("compiled as the model is" in warning for warning in engine.info.warnings) is (kind != "fused")
    assert [generate(engine, rows, 12) for rows in (PROMPTS[:1], PROMPTS)] == expected
    assert len(set(expected[0][0][0])) > 2, "repetition would prove nothing"


@pytest.mark.slow(1)
def test_learned_positions_equal_eager_decoding(engine):
    assert generate(compiled(engine), PROMPTS, 12) == generate(engine, PROMPTS, 12)


def test_fusing_weights_changes_neither_logits_nor_memory():
    plain = small("qwen2", num_key_value_heads=2)
    before, info = plain.next_token_logits([1, 2, 3, 4]), plain.info
    before_fusing = {weight.untyped_storage().data_ptr() for weight in plain.model.state_dict().values()}
    fused = compiled(plain)
    assert torch.equal(fused.next_token_logits([1, 2, 3, 4]), before)
    assert fused.info.model_size_bytes == info.model_size_bytes
    assert fused.info.step_weight_bytes == info.step_weight_bytes
    # Queries, keys and values, and gate and up, are one each: weights of both layers, and the biases.
    storages = [weight.untyped_storage() for weight in fused.model.state_dict().values()]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert len(before_fusing) - len(sizes) == 2 * (2 + 2 + 1)
    assert sum(sizes.values()) == info.model_size_bytes


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (lambda: bigram_engine(chain((1, 2), size=8)), "its cache does not just grow by the token"),
        (lambda: small("mistral", sliding_window=4), "its cache does not just grow by the token"),
        (
            lambda: small("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
            "the rotary angles of this model",
        ),
    ],
)
def test_uncompilable_models_decode_eagerly_with_a_warning(engine, reason):
    plain = compiled(engine())
    assert (plain.info.facts["compile"], plain.info.facts["decode_step"]) == ("none", "eager")
    assert any(f"decoding is not compiled: {reason}" in warning for warning in plain.info.warnings)


def test_quantized_and_unequal_weights_are_not_fused():
    model = small("llama").model
    model.model.layers[1].self_attn.k_proj.bias = torch.nn.Parameter(torch.zeros(4))
    assert unfusible(model) == "some of its products have a bias and some have none"
    model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    assert unfusible(model) == "its weights are quantized or packed"


@pytest.mark.slow(1)
def test_end_tokens_stop_rows_as_in_eager_decoding():
    eager = small("llama", seed=3)
    row = generate(eager, PROMPTS[:1], 12)[0][0]
    eager.model.generation_config.eos_token_id = [row[4]]
    eager = TorchEngine(eager.model, eager.tokenizer)
    engine = compiled(eager)
    for rows in (PROMPTS[:1], PROMPTS):
        for ignore_eos in (True, False):
            assert generate(engine, rows, 12, ignore_eos=ignore_eos) == generate(eager, rows, 12, ignore_eos=ignore_eos)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"use_cache": False}, "needs the KV cache"), ({"padding_side": "right"}, "pads on the left")],
)
def test_requests_beyond_a_static_cache_are_rejected(settings, message):
    engine = compiled(small("llama"))
    with pytest.raises(ScenarioError, match=message) as caught:
        generate(engine, PROMPTS, 4, **settings)
    assert caught.value.kind == "unsupported"


def test_each_shape_is_prepared_once_and_the_oldest_is_dropped():
    engine = compiled(small("llama"))
    requests = [GenerateRequest((tuple(range(1, 3 + length)),), 4) for length in range(MOST_SHAPES + 1)]
    assert engine.prepare(requests[0]) > 0
    assert engine.prepare(requests[0]) == 0
    for request in requests[1:]:
        assert engine.prepare(request) > 0
    assert engine.prepare(requests[-1]) == 0
    assert engine.prepare(requests[0]) > 0


@pytest.mark.slow(1)
def test_compile_time_is_separate_and_recompilation_is_reported():
    class Slow:
        """Compiles for two seconds whenever the shape changes."""

        def __init__(self, engine):
            self.engine, self.shape = engine, 0

        def prepare(self, request):
            seconds = 2.0 * (self.shape != len(request.prompt_ids[0]))
            self.shape = len(request.prompt_ids[0])
            return seconds

        def __getattr__(self, name):
            return getattr(self.engine, name)

    policy = RepeatPolicy(min_repeats=2, min_seconds=0, max_repeats=2)
    first, second = (GenerateRequest(prompts, 2) for prompts in (PROMPTS[:1], PROMPTS[1:2]))
    engine = Slow(small("llama"))
    alone = dict(time_arms(engine, {"one": Arm((first,), policy)}))["one"]
    assert alone["compile_time_s"] == 2.0
    assert alone["total_latency_s"] < 2.0
    assert not any("times again" in warning for warning in alone.warnings)
    both = dict(time_arms(engine, {"both": Arm((first, second), policy)}))["both"]
    assert both["compile_time_s"] == 2.0 * (3 + 4 + 4)
    assert any("recompiled 8 times" in warning for warning in both.warnings)
    eager = dict(time_arms(small("llama"), {"one": Arm((first,), policy)}))["one"]
    assert "compile_time_s" not in eager.metrics


def test_device_timestamps_count_from_the_start():
    """An engine that works ahead of the host reports when the device completed each step."""
    from llmtrack.engine import Generated
    from llmtrack.measure.timing import trace_generate

    class Ahead:
        def synchronize(self):
            pass

        def generate(self, request, on_step):
            for _ in range(3):
                on_step()
            return Generated(((1, 2, 3),), lambda: (0.25, 0.5, 1.0))

    times = iter([10.0, 10.001, 10.002, 10.003, 11.5])
    trace, _ = trace_generate(Ahead(), GenerateRequest(((1,),), 3), lambda: next(times))
    assert (trace.start, trace.stamps, trace.end) == (10.0, (10.25, 10.5, 11.0), 11.5)


def test_a_cpu_is_stamped_by_the_host():
    calls = []
    stamps = Stamps(torch.device("cpu"), lambda: calls.append(1))
    stamps.step()
    stamps.wait()
    assert (stamps.seconds, calls) == (None, [1])


def test_gpu_timestamps_are_anchored_at_the_hosts_end(monkeypatch):
    """The host waited until 10.5 for the last of three steps, 400 and 150 ms after the others."""
    now = iter([10.0, 10.2, 10.5])
    finished_at_ms = iter([1600.0, 1850.0, 2000.0])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = next(finished_at_ms)

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    stamps = Stamps(torch.device("cuda:0"), lambda: None)
    for _ in range(2):
        stamps.step()
    stamps.wait()  # to check for the end of a sequence
    stamps.step()
    stamps.wait()
    assert stamps.seconds() == pytest.approx((0.1, 0.35, 0.5))


@pytest.mark.slow(1)
def test_the_compile_option_is_passed_and_tracked():
    from experiments import baseline
    from llmtrack.engines.torch import pytorch
    from llmtrack.spec.scenario import Variant

    (compiling,) = baseline.build(baseline.Config(compile="default", threads=1)).scenarios
    assert compiling.variant.options == (("compile", "default"), ("threads", 1))
    (plain,) = baseline.build(baseline.Config()).scenarios
    assert plain.variant.options == ()
    tiny = Variant("synthetic:tiny", device="cpu")
    assert pytorch.load(tiny).info.facts["compile"] == "none"
    engine = pytorch.load(replace(tiny, options=(("compile", "max-autotune"),)))
    assert engine.info.facts["compile"] == "max-autotune"
    assert engine.info.facts["decode_step"] == "compiled, fused"


def test_a_failing_compiler_fails_the_scenario():
    def fails(run):
        def compiled(*inputs):
            raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

        return compiled

    plain = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    engine = TorchEngine(*plain, compile="default", compiler=fails)
    with pytest.raises(ScenarioError, match=r"no C\+\+ compiler\): use compile=none"):
        engine.prepare(GenerateRequest(PROMPTS[:1], 4))


# A text is evaluated in the worker: a fork of a process that has initialized CUDA cannot use it.
@pytest.mark.skipif("not torch.cuda.is_available()", reason="the attention kernel needs a GPU")
@pytest.mark.parametrize("length", [64, 1024, 2048])
def test_the_attention_kernel_equals_separate_operators(length):
    from llmtrack.engines.torch.fast import fused

    model, _ = synthetic.build("tiny", device="cuda:0", dtype=torch.bfloat16)
    step = fused.FusedModel(model)
    ids = torch.randint(0, 500, (3, 41), device="cuda:0")
    mask = torch.ones((3, 1, 41, length), dtype=torch.bool, device="cuda:0").tril()
    mask[1, ..., :5] = False
    mask |= torch.eye(41, length, dtype=torch.bool, device="cuda:0")
    slots, positions = torch.arange(41, device="cuda:0"), torch.arange(41, device="cuda:0").expand(3, -1)
    with torch.inference_mode():
        expected_cache = step.new_cache(3, length, 0)
        expected = step.logits(ids, positions, slots, mask, expected_cache)
        cache = step.new_cache(3, length, 0)
        step.logits(ids[:, :40], positions[:, :40], slots[:40], mask[:, :, :40], cache)
        logits = step.logits(ids[:, 40:], positions[:, 40:], slots[40:], mask[:, :, 40:], cache)
    assert (logits - expected).norm() < 0.02 * expected.norm()
    assert torch.allclose(cache.values[-1][:, :, :41], expected_cache.values[-1][:, :, :41], atol=0.05)


def test_the_highest_logit_of_parts():
    for vocabulary in (7, 512, 1000, 50_257):
        logits = torch.randn(3, vocabulary)
        assert torch.equal(_highest(logits), logits.argmax(dim=-1, keepdim=True))
