"""A model whose layers are spread over all cards: here over one device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.engines.torch.parallel.device_map import load_spread
from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.measure.memory import check_memory
from llmtrack.models.load import refuse_offloaded
from llmtrack.quality.perplexity import score_documents
from llmtrack.spec.scenario import Variant


@pytest.mark.slow(1)
def test_a_spread_model_gives_the_same_results(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    single = load_engine("synthetic:tiny", device="cpu")
    spread = load_engine("synthetic:tiny", device="cpu", device_map="auto")
    request = GenerateRequest(((5, 17, 99), (7, 8)), 4)
    assert spread.generate(request, lambda: None).new_ids == single.generate(request, lambda: None).new_ids
    text = ["The harbour wakes before the town."]
    assert score_documents(spread, text).loss == pytest.approx(score_documents(single, text).loss, abs=1e-6)
    for name in ("model_id", "step_weight_bytes", "operations", "cache", "tags", "devices", "parallel"):
        assert getattr(spread.info, name) == getattr(single.info, name), name
    assert spread.info.facts["device_map"] == "auto"


@pytest.mark.parametrize(("settings", "message"), [
    ({"quantization": "int8-weight-only"}, "device_map cannot be combined with quantization"),
    ({"options": (("compile", "default"), ("device_map", "auto"))}, "device_map cannot be combined with compile"),
])  # fmt: skip
def test_incompatible_options_are_rejected(settings, message):
    with pytest.raises(UsageError, match=message):
        load_spread(Variant("synthetic:tiny", device="cpu", **settings), lambda variant: None)


def test_a_model_partly_off_the_cards_is_rejected():
    refuse_offloaded({"a": 0, "b": 1}, "cuda")
    refuse_offloaded({"": "cpu"}, "cpu")
    with pytest.raises(ModelLoadError, match=r"2 parts of it do not fit on the GPUs \(b ...\)"):
        refuse_offloaded({"a": 0, "b": "cpu", "c": "disk"}, "cuda")


def test_the_memory_of_a_batch_is_divided_among_devices():
    info = load_engine("synthetic:tiny", device="cpu").info
    needed = 4 * 100 * (32 + info.kv_bytes_per_token)
    check_memory(replace(info, devices=2), 4, 100, free=needed // 2)
    with pytest.raises(Exception, match="a batch of 4 rows"):
        check_memory(info, 4, 100, free=needed // 2)
