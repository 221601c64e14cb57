"""A step over a static cache generates what eager greedy decoding does; here it is not really compiled, which takes long."""

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
from tests.engines.models import bigram_engine, chain, small
from tests.engines.test_generate import generate

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
AS_IT_IS = [
    # Its body scales the embedding; in transformers 5 the embedding does, and it is like a Llama.
    *([("gemma", {"tie_word_embeddings": False})] if TRANSFORMERS_MAJOR < 5 else []),
    ("granite", {"residual_multiplier": 0.4, "embedding_multiplier": 3.0}),
    ("gpt_neox", {"num_key_value_heads": ...}),
    ("phi3", {}),  # has its products fused already
]


def compiled(engine: TorchEngine) -> TorchEngine:
    """The same model once more, decoded over a static cache."""
    return TorchEngine(engine.model, engine.tokenizer, compile="default", compiler=lambda run: run)


@pytest.mark.slow(1)
@pytest.mark.parametrize(("architecture", "settings"), FUSED + AS_IT_IS)
def test_a_compiled_step_gives_the_ids_of_eager_decoding(architecture, settings):
    eager = small(architecture, **settings)
    expected = [generate(eager, rows, 12) for rows in (PROMPTS[:1], PROMPTS)]
    engine = compiled(eager)
    kind = "fused" if (architecture, settings) in FUSED else "as it is"
    assert engine.info.facts["decode_step"] == f"compiled, {kind}", engine.info.warnings
    assert any("compiled as the model is" in each for each in engine.info.warnings) is (kind != "fused")
    assert [generate(engine, rows, 12) for rows in (PROMPTS[:1], PROMPTS)] == expected
    assert len(set(expected[0][0][0])) > 2, "a model that repeats itself proves nothing"


@pytest.mark.slow(1)
def test_learned_positions_run_as_they_are(engine):
    assert generate(compiled(engine), PROMPTS, 12) == generate(engine, PROMPTS, 12)


def test_to_fuse_the_weights_changes_neither_logits_nor_memory():
    plain = small("qwen2", num_key_value_heads=2)
    before, info = plain.next_token_logits([1, 2, 3, 4]), plain.info
    held = {each.untyped_storage().data_ptr() for each in plain.model.state_dict().values()}
    fused = compiled(plain)
    assert torch.equal(fused.next_token_logits([1, 2, 3, 4]), before)
    assert fused.info.model_size_bytes == info.model_size_bytes
    assert fused.info.step_weight_bytes == info.step_weight_bytes
    # Queries, keys and values, and gate and up, are one each: weights of both layers, and the biases.
    storages = {each.untyped_storage().data_ptr() for each in fused.model.state_dict().values()}
    assert len(held) - len(storages) == 2 * (2 + 2 + 1)
    assert (
        sum(
            each.untyped_storage().nbytes()
            for each in {each.untyped_storage().data_ptr(): each for each in fused.model.state_dict().values()}.values()
        )
        == info.model_size_bytes
    )


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
def test_what_cannot_be_compiled_decodes_eagerly_and_says_so(engine, reason):
    plain = compiled(engine())
    assert (plain.info.facts["compile"], plain.info.facts["decode_step"]) == ("none", "eager")
    assert any(f"decoding is not compiled: {reason}" in each for each in plain.info.warnings)


def test_quantized_and_unequal_weights_are_not_fused():
    model = small("llama").model
    model.model.layers[1].self_attn.k_proj.bias = torch.nn.Parameter(torch.zeros(4))
    assert unfusible(model) == "some of its products have a bias and some have none"
    model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    assert unfusible(model) == "its weights are quantized or packed"


@pytest.mark.slow(1)
def test_the_end_of_a_sequence_ends_it():
    """And the others go on, up to the same ids as eagerly."""
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
def test_what_a_static_cache_cannot_do_is_refused(settings, message):
    engine = compiled(small("llama"))
    with pytest.raises(ScenarioError, match=message) as caught:
        generate(engine, PROMPTS, 4, **settings)
    assert caught.value.kind == "unsupported"


def test_each_shape_is_prepared_once_and_the_oldest_is_given_up():
    engine = compiled(small("llama"))
    requests = [GenerateRequest((tuple(range(1, 3 + length)),), 4) for length in range(MOST_SHAPES + 1)]
    assert engine.prepare(requests[0]) > 0
    assert engine.prepare(requests[0]) == 0
    for request in requests[1:]:
        assert engine.prepare(request) > 0
    assert engine.prepare(requests[-1]) == 0
    assert engine.prepare(requests[0]) > 0


@pytest.mark.slow(1)
def test_compiling_is_timed_apart_and_what_is_compiled_again_is_said():
    class Slow:
        """Compiles for two seconds whenever the other shape was there before."""

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
    assert not any("times again" in each for each in alone.warnings)
    both = dict(time_arms(engine, {"both": Arm((first, second), policy)}))["both"]
    assert both["compile_time_s"] == 2.0 * (3 + 4 + 4)
    assert any("recompiled 8 times" in each for each in both.warnings)
    eager = dict(time_arms(small("llama"), {"one": Arm((first,), policy)}))["one"]
    assert "compile_time_s" not in eager.metrics


def test_seconds_of_the_device_are_stamps_from_the_start():
    """An engine that works ahead of the host tells when the device had each step done."""
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


def test_on_a_cpu_the_host_stamps():
    told = []
    stamps = Stamps(torch.device("cpu"), lambda: told.append(1))
    stamps.step()
    stamps.wait()
    assert (stamps.seconds, told) == (None, [1])


def test_a_gpu_stamps_backwards_from_what_the_host_saw(monkeypatch):
    """The host waited until 10.5 for the last of three steps, which the GPU had done 400 and 150 ms after the others."""
    now = iter([10.0, 10.2, 10.5])
    done = iter([1600.0, 1850.0, 2000.0])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = next(done)

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
    stamps.wait()  # for the end of a sequence, which might have come
    stamps.step()
    stamps.wait()
    assert stamps.seconds() == pytest.approx((0.1, 0.35, 0.5))


@pytest.mark.slow(1)
def test_the_option_reaches_the_engine_and_is_tracked():
    from experiments import baseline
    from llmtrack.engines.torch import pytorch
    from llmtrack.spec.scenario import Variant

    (told,) = baseline.build(baseline.Config(compile="default", threads=1)).scenarios
    assert told.variant.options == (("compile", "default"), ("threads", 1))
    (plain,) = baseline.build(baseline.Config()).scenarios
    assert plain.variant.options == ()
    tiny = Variant("synthetic:tiny", device="cpu")
    assert pytorch.load(tiny).info.facts["compile"] == "none"
    asked = pytorch.load(replace(tiny, options=(("compile", "max-autotune"),)))
    assert asked.info.facts["compile"] == "max-autotune"
    assert asked.info.facts["decode_step"] == "compiled, fused"


def test_a_compiler_that_fails_is_a_failure_of_the_scenario():
    def fails(run):
        def compiled(*inputs):
            raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

        return compiled

    plain = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    engine = TorchEngine(*plain, compile="default", compiler=fails)
    with pytest.raises(ScenarioError, match=r"no C\+\+ compiler\): use compile=none"):
        engine.prepare(GenerateRequest(PROMPTS[:1], 4))


# As a text it is asked in the worker: a fork of a process that has asked for a GPU cannot use it.
@pytest.mark.skipif("not torch.cuda.is_available()", reason="one kernel for a token's attention is there on a GPU only")
@pytest.mark.parametrize("length", [64, 1024, 2048])
def test_attention_in_one_kernel_is_that_of_many(length):
    from llmtrack.engines.torch.fast import fused

    model, _ = synthetic.build("tiny", device="cuda:0", dtype=torch.bfloat16)
    step = fused.FusedModel(model)
    ids = torch.randint(0, 500, (3, 41), device="cuda:0")
    mask = torch.ones((3, 1, 41, length), dtype=torch.bool, device="cuda:0").tril()
    mask[1, ..., :5] = False
    mask |= torch.eye(41, length, dtype=torch.bool, device="cuda:0")
    slots, positions = torch.arange(41, device="cuda:0"), torch.arange(41, device="cuda:0").expand(3, -1)
    with torch.inference_mode():
        many = step.new_cache(3, length, 0)
        expected = step.logits(ids, positions, slots, mask, many)
        one = step.new_cache(3, length, 0)
        step.logits(ids[:, :40], positions[:, :40], slots[:40], mask[:, :, :40], one)
        made = step.logits(ids[:, 40:], positions[:, 40:], slots[40:], mask[:, :, 40:], one)
    assert (made - expected).norm() < 0.02 * expected.norm()
    assert torch.allclose(one.values[-1][:, :, :41], many.values[-1][:, :, :41], atol=0.05)


def test_the_highest_logit_is_found_in_parts():
    for vocabulary in (7, 512, 1000, 50_257):
        logits = torch.randn(3, vocabulary)
        assert torch.equal(_highest(logits), logits.argmax(dim=-1, keepdim=True))
