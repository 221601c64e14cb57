"""The ONNX Runtime engine gives PyTorch's results, and rejects in one line what it cannot run."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from llmtrack.engine import GenerateRequest
from llmtrack.engines.onnx import weight_sizes
from llmtrack.engines.registry import load_engine, load_variant
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.host.packages import available
from llmtrack.models.cache import MANIFEST, describe_damage
from llmtrack.quality.perplexity import score_documents
from llmtrack.spec.scenario import Variant
from llmtrack.tensors.padding import pad_rows

pytestmark = [
    pytest.mark.skipif(
        not available("onnx", "any"), reason="the onnx extra is not installed: the rest works without it"
    ),
    pytest.mark.usefixtures("kept_exports"),
]

PROMPTS = ((5, 17, 99, 200, 3), (7, 8), (250, 11, 12, 13, 14, 15, 16))
TEXTS = ("The harbour wakes before the town.", "Bread.", "By noon the crates are gone and the quay is washed.")


@pytest.fixture(scope="module", params=["synthetic:tiny", "synthetic:tiny-gpt2"])
def pair(request, kept_exports):
    """The same model in PyTorch and in ONNX Runtime."""
    return load_engine(request.param, device="cpu"), load_engine(request.param, backend="onnx", device="cpu")


@pytest.mark.slow(2)
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_generation_equals_pytorchs(pair, use_cache, padding_side):
    request = GenerateRequest(PROMPTS, 6, use_cache=use_cache, padding_side=padding_side)
    steps: list[int] = []
    expected, generated = (engine.generate(request, lambda: steps.append(1)) for engine in pair)
    assert generated == expected
    assert len(steps) == 2 * 6


@pytest.mark.slow(1)
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_scores_equal_pytorchs(pair, padding_side):
    ids, mask = pad_rows(PROMPTS, 0, padding_side)
    (expected, expected_counts), (sums, counts) = (engine.score(ids, mask) for engine in pair)
    assert sums == pytest.approx(expected, rel=1e-5)
    assert expected_counts.tolist() == counts.tolist() == [4, 1, 6]


def test_logits_equal_pytorchs(pair):
    expected, logits = (engine.next_token_logits(PROMPTS[0]) for engine in pair)
    assert logits.shape == expected.shape == (5, pair[0].info.vocab_size)
    assert logits == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow(1)
def test_perplexity_does_not_depend_on_batch_size_or_padding_side():
    engine = load_engine("synthetic:tiny", backend="onnx", device="cpu", quantization="int8-weight-only")
    losses = {
        score_documents(engine, TEXTS, batch_size=size, padding_side=side).loss
        for size in (1, 3)
        for side in ("left", "right")
    }
    assert max(losses) == pytest.approx(min(losses), rel=1e-12)


def test_info_equals_pytorchs(pair):
    expected, info = (engine.info for engine in pair)
    for name in ("model_id", "device", "vocab_size", "kv_bytes_per_token", "context_length", "special_tokens"):
        assert getattr(info, name) == getattr(expected, name), name
    assert info.dtype_label == "float32"
    assert info.tags["weights_digest"] == expected.tags["weights_digest"]
    assert info.facts["parity_max_share"] < 1e-3
    assert info.facts["parity_top1_agreement"] == 1.0
    assert info.facts["provider"] == "CPUExecutionProvider"
    rotary = info.model_id == "synthetic:tiny"
    assert info.facts["onnx_attention"] == ("GroupQueryAttention" if rotary else "as exported")
    # A tied head is not stored twice in float32.
    assert info.model_size_bytes == pytest.approx(expected.model_size_bytes, rel=0.2)
    assert info.file_size_bytes >= info.model_size_bytes


def test_the_session_has_the_requested_options():
    options = (("graph_optimization", "basic"), ("provider", "CPU"), ("threads", 1))
    engine = load_variant(Variant("synthetic:tiny", backend="onnx", device="cpu", options=options))
    assert engine.info.facts["graph_optimization"] == "basic"
    assert engine.info.facts["threads"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((("provider", "Moon"),), "this build of ONNX Runtime has no MoonExecutionProvider: it has .*CPU"),
        ((("graph_optimization", "much"),), "no graph_optimization 'much': use one of all, extended, basic, none"),
    ],
)
def test_unavailable_options_are_rejected(options, message):
    with pytest.raises(UsageError, match=message):
        load_variant(Variant("synthetic:tiny", backend="onnx", device="cpu", options=options))


def test_other_precisions_are_rejected():
    with pytest.raises(ScenarioError, match="the onnx backend has no bfloat16: use dtype=float32"):
        load_engine("synthetic:tiny", backend="onnx", device="cpu", dtype="bfloat16")


@pytest.mark.slow(4)
def test_a_damaged_export_is_rebuilt(tmp_path, monkeypatch, kept_exports):
    load_engine("synthetic:tiny", backend="onnx", device="cpu")
    (export,) = (kept_exports / "models").glob("tiny-onnx-" + "[0-9a-f]" * 16)
    shutil.copytree(export, tmp_path / "models" / export.name)
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    (entry,) = (path for path in (tmp_path / "models").iterdir() if "onnx" in path.name and path.is_dir())
    # The right size but not the right content, as from a failing disk.
    path = entry / "model.onnx"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert "another content" in describe_damage(entry)
    engine = load_engine("synthetic:tiny", backend="onnx", device="cpu")
    assert engine.generate(GenerateRequest(PROMPTS, 2), lambda: None).new_ids
    assert describe_damage(entry) is None
    # A truncated file.
    path.write_bytes(path.read_bytes()[:1000])
    load_engine("synthetic:tiny", backend="onnx", device="cpu")
    assert describe_damage(entry) is None
    assert json.loads((entry / MANIFEST).read_text())["onnx_attention"] == "GroupQueryAttention"


def test_a_step_reads_the_experts_that_a_token_is_routed_to(tmp_path):
    from onnx import TensorProto, helper, numpy_helper

    names = [f"/model/layers.0/mlp/experts.{number}/up_proj/MatMul" for number in range(4)] + ["/head/MatMul"]
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"y{n}"], name=name) for n, name in enumerate(names)]
    weights = [numpy_helper.from_array(np.zeros((8, 8), dtype=np.float32), f"w{n}") for n in range(5)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y4")]
    graph = helper.make_graph(nodes, "experts", ends[:1], ends[1:], initializer=weights)
    (tmp_path / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    size = 8 * 8 * 4
    assert weight_sizes(tmp_path / "model.onnx", 1) == (5 * size, 2 * size)
    assert weight_sizes(tmp_path / "model.onnx", 2) == (5 * size, 3 * size)
    assert weight_sizes(tmp_path / "model.onnx") == (5 * size, 5 * size)
