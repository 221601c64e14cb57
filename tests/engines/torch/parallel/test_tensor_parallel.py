"""A model sharded over processes gives the same results and is described as one model: on the CPU, with gloo."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from llmtrack.engine import EngineInfo, GenerateRequest, Operations
from llmtrack.engines.registry import load_engine, load_variant
from llmtrack.engines.text import chat_text
from llmtrack.engines.torch.parallel import tensor_parallel as ranks
from llmtrack.engines.torch.parallel.tensor_parallel import Ranks, joint_info
from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.models.folder import save_model
from llmtrack.models.load import refuse_unsharded
from llmtrack.quality.perplexity import score_documents
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy
from llmtrack.worker.measuring import EngineCache, measure_group
from tests.conftest import HANG_S
from tests.engines.models import small
from tests.forking import Forked, ForkedModule

SHARD = EngineInfo(
    "m",
    "cuda:0",
    "bfloat16",
    100,
    80,
    10,
    None,
    8,
    kv_windows=((4, 6),),
    state_bytes=3,
    operations=Operations(50, 4, 20),
)


def test_sizes_and_work_are_summed_over_shards():
    joint = joint_info([SHARD, replace(SHARD, step_weight_bytes=70, kv_windows=((4, 6), (8, 2)))], devices=2)
    assert (joint.model_size_bytes, joint.step_weight_bytes, joint.kv_bytes_per_token) == (200, 150, 20)
    assert (joint.kv_windows, joint.state_bytes) == (((4, 12), (8, 2)), 6)
    assert (joint.operations, joint.devices) == (Operations(100, 8, 40), 2)
    assert joint_info([SHARD, replace(SHARD, operations=None)], 2).operations is None


@pytest.mark.parametrize(("cards", "device", "count", "message"), [
    (1, "cuda", 2, "tensor_parallel=2 needs 2 GPUs, but there are 1"),
    (2, "cpu", 2, "on the CPU of a machine with a GPU is not possible"),
    (0, "cpu", 1024, "tensor_parallel=1024 needs 1024 CPUs, but there are [0-9]+: use fewer"),
])  # fmt: skip
def test_unavailable_devices_are_rejected(monkeypatch, cards, device, count, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    with pytest.raises(UsageError, match=message):
        ranks.load_sharded(Variant("synthetic:tiny", device=device), count, lambda variant: None)


@pytest.mark.parametrize("settings", [{"quantization": "int8-weight-only"}, {"options": (("compile", "default"),)}])
def test_incompatible_options_are_rejected(settings):
    with pytest.raises(UsageError, match="tensor_parallel cannot be combined with"):
        ranks.load_sharded(Variant("synthetic:tiny", device="cpu", **settings), 2, lambda variant: None)


@pytest.mark.parametrize(("architecture", "ranks", "message"), [
    ("llama", 2, "num_key_value_heads=1 cannot be divided among 2"),
    ("llama", 3, "num_attention_heads=2, num_key_value_heads=1 cannot be divided among 3"),
    ("gpt2", 2, "transformers has no plan to shard gpt2"),
])  # fmt: skip
def test_a_model_that_cannot_be_sharded_is_rejected(monkeypatch, architecture, ranks, message):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    with pytest.raises(ModelLoadError, match=message):
        refuse_unsharded(small(architecture).model.config)


def test_a_sharded_model_formats_messages():
    local = small("llama")
    local.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    engine = ranks.ShardedEngine(None, 1, local, local.info)
    assert chat_text(engine, [{"role": "user", "content": "hello"}]) == "hello"


def with_biases(folder):
    """A folder of a small model whose layers have biases, and whose head is its embedding."""
    engine = small("qwen2", num_key_value_heads=2, tie_word_embeddings=True)
    with torch.random.fork_rng(), torch.no_grad():
        for parameter in engine.model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.3)
    save_model(folder, engine.model, engine.tokenizer)
    return str(folder)


@pytest.mark.slow(7)
def test_a_model_in_two_processes(tmp_path):
    """In a process that never saw a card: in one that did, transformers puts its shard of the model on the card."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "LLMTRACK_CACHE": str(tmp_path)}
    first = Forked(check_two_processes, tmp_path, environment=os.environ | hidden)
    assert first.wait(HANG_S) == 0


def check_two_processes(folder):
    if sys.platform == "linux":
        # The second process is a fork of this one: a new one would import PyTorch and transformers for seconds.
        ranks.subprocess = SimpleNamespace(DEVNULL=None, Popen=ForkedModule, TimeoutExpired=psutil.TimeoutExpired)
    model = with_biases(folder / "model")
    single, shared = (load_engine(model, device="cpu", tensor_parallel=count) for count in (1, 2))
    # A reference joins the same group.
    engines = EngineCache(lambda variant: shared if variant.dtype == "float32" else load_variant(variant))
    try:
        steps = []
        request = GenerateRequest(((5, 17, 99), (7, 8)), 4)
        assert (
            shared.generate(request, lambda: steps.append(1)).new_ids == single.generate(request, lambda: None).new_ids
        )
        assert len(steps) == 4
        texts = ["The harbour wakes before the town.", "By noon the crates are gone."]
        losses = [score_documents(engine, texts, max_length=32).loss for engine in (single, shared)]
        assert losses[1] == pytest.approx(losses[0], abs=1e-5)
        assert torch.allclose(shared.next_token_logits([1, 2]), single.next_token_logits([1, 2]), atol=1e-4)
        # Each rank has five norms of 8, and by transformers 4.57 a tied head of 600 x 8, in 4 bytes.
        head = 600 * 8 if TRANSFORMERS_MAJOR < 5 else 0
        both = head + 5 * 8
        assert shared.info.model_size_bytes == single.info.model_size_bytes + 4 * both
        assert shared.info.step_weight_bytes == single.info.step_weight_bytes + 4 * both
        assert shared.info.cache == single.info.cache
        assert shared.info.operations == Operations(
            single.info.operations.per_token + 2 * head, single.info.operations.per_context, 2 * 600 * 8 + 2 * head
        )
        assert shared.info.devices == 1, "two processes share one CPU"
        assert shared.info.tags == single.info.tags
        assert shared.info.facts["tensor_parallel"] == 2
        # This process is one of the two, and its size depends on earlier tests; PyTorch alone takes more than this.
        assert shared.peak_memory_bytes() > single.peak_memory_bytes() + 100 * 2**20
        with pytest.raises(UsageError, match="already sharded over 2 processes"):
            Ranks.get(3, "cpu")
        # One run has all results.
        variant = Variant(model, device="cpu", options=(("tensor_parallel", 2),))
        check = QualityCheck(PerplexityTask(max_length=16), replace(variant, dtype="bfloat16"), 32)
        task = GenerateTask(("The harbour wakes",), max_new_tokens=3)
        scenario = Scenario("shared", variant, task, RepeatPolicy(1, 1, 0, 5, 1), quality=check)
        events = []
        measure_group([scenario], engines, events.append)
        measurement = events[-1]
        assert isinstance(measurement, Measurement), measurement
        assert measurement.facts["tensor_parallel"] == 2
        assert {"tokens_per_sec", "decode_mib", "perplexity", "kl_divergence"} <= set(measurement.metrics)
        engines.close()
    finally:
        if Ranks._open is not None:
            shared.close()
    assert Ranks._open is None
