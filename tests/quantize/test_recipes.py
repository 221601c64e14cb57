"""Every recipe on a tiny model: it runs, the model is smaller, and its loss nearly the same."""

from __future__ import annotations

import json
import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import TensorProto, numpy_helper

from llmtrack.errors import ScenarioError, UsageError
from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder
from llmtrack.quantize import weight_only
from llmtrack.quantize.int8 import apply as int8_dynamic
from llmtrack.quantize.int8 import instruction_set
from llmtrack.quantize.options import Static
from llmtrack.quantize.recipe import Job, find_recipe, recipes
from llmtrack.quantize.sensitivity import DYNAMIC, mean_loss, rank, worst_first
from llmtrack.spec.options import parameters

METHODS = next(option for option in parameters(Static) if option.name == "calibration_method").option.choices
RANDOM = np.random.default_rng(0)
CALIBRATION = tuple(tuple(RANDOM.integers(0, 500, 64).tolist()) for _ in range(4))
HELD_OUT = tuple(tuple(RANDOM.integers(0, 500, 64).tolist()) for _ in range(4))
MIXED = "onnx/int4-mixed"


def apply(label: str, source: Path, target: Path, rows=CALIBRATION, **options):
    recipe = find_recipe(*label.split("/"))
    target.mkdir(exist_ok=True)
    rows = rows if recipe.calibrated else ()
    return recipe.apply(Job(source, target, recipe.resolve_options(tuple(options.items())), rows))


@pytest.fixture(scope="module")
def exact_loss(exported) -> float:
    """Return the loss of the exported float model."""
    return mean_loss(OnnxDecoder(exported / MODEL_FILE), HELD_OUT)


@pytest.fixture(scope="module")
def generated(exported):
    """Rows that the exported model generates."""
    return generated_rows(exported)


@pytest.fixture(scope="module")
def build(exported, generated, tmp_path_factory):
    """Return the folder and the findings of a recipe, applied once.

    The 4-bit ones that read text read what the model generates; the bound of int4-mixed needs layers of 8 bits.
    """

    @cache
    def build(label: str):
        folder = tmp_path_factory.mktemp("built") / "out"
        rows = generated if label.startswith("onnx/int4") else CALIBRATION
        options = {"keep_quality": "15%"} if label == MIXED else {}
        return folder, apply(label, exported, folder, rows, **options)

    return build


@pytest.fixture(params=[recipe.label for recipe in recipes() if recipe.backend == "onnx"])
def built(request, build):
    """Return the folder and the findings of each recipe."""
    return build(request.param)


@pytest.mark.slow(1)
def test_each_recipe_makes_a_smaller_model_with_nearly_the_same_loss(built, exported, exact_loss):
    folder, findings = built
    assert abs(mean_loss(OnnxDecoder(folder / MODEL_FILE), HELD_OUT) - exact_loss) < 0.15
    small, large = (path.stat().st_size for path in (folder / MODEL_FILE, exported / MODEL_FILE))
    assert small < 0.6 * large
    # Four layers of seven, and the head unless it is stored separately.
    assert findings.facts["linear_layers"] in (28, 29)
    json.dumps(findings.facts)


EMBEDDING = 512, 128
"""Vocabulary, and width."""


def embedding(folder: Path) -> np.ndarray:
    """Return the float embedding of an export."""
    tensors = graph.load(folder / MODEL_FILE).graph.initializer
    return numpy_helper.to_array(next(tensor for tensor in tensors if tuple(tensor.dims) == EMBEDDING))


def lookup_table(model) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the stored steps, the scales per token, and the name of a quantized embedding."""
    (lookup,) = (node for node in model.graph.node if node.op_type == "GatherBlockQuantized")
    weights = graph.weights_of(model)
    steps, scales = (numpy_helper.to_array(weights[lookup.input[index]]) for index in (0, 2))
    return steps, scales.reshape(EMBEDDING[0], -1), lookup.input[0]


@pytest.mark.slow(1)
def test_a_tied_embedding_is_stored_once(built, exported):
    folder, _ = built
    model = graph.load(folder / MODEL_FILE)
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    assert EMBEDDING not in [tuple(t.dims) for t in floats]
    producers = graph.producers_of(model)
    steps, scales, name = lookup_table(model)
    assert producers[producers["logits"].input[1]].input[0] == name
    values = (steps.astype(np.float32) - 128) * np.repeat(scales, EMBEDDING[1] // scales.shape[1], axis=1)
    # A step of the largest scale: at the upper end of a range, where there is one step less.
    assert np.abs(values - embedding(exported)).max() <= 1.01 * float(scales.max())


@pytest.mark.slow(1)
@pytest.mark.parametrize("method", METHODS)
def test_each_calibration_method(method, exported, exact_loss, tmp_path):
    rows = CALIBRATION[:1]  # each row is also read to rank the layers
    apply("onnx/int8-static", exported, tmp_path / "out", rows, calibration_method=method, keep_quality="none")
    operators = [node.op_type for node in graph.load(tmp_path / "out" / MODEL_FILE).graph.node]
    assert operators.count("DequantizeLinear") > 28
    assert abs(mean_loss(OnnxDecoder(tmp_path / "out" / MODEL_FILE), HELD_OUT) - exact_loss) < 0.3


def test_an_unknown_calibration_method_is_refused(exported, tmp_path):
    with pytest.raises(UsageError, match="no calibration_method 'guess': use one of minmax, percentile, entropy"):
        apply("onnx/int8-static", exported, tmp_path / "out", calibration_method="guess")


@pytest.mark.slow(2)
@pytest.mark.parametrize("label", ["onnx/int8-weight-only", "onnx/int4-weight-only", "onnx/int8-dynamic"])
def test_gemm_layers_are_quantized(label, exported_gpt2, tmp_path):
    built = apply(label, exported_gpt2, tmp_path / "out", CALIBRATION[:2])
    model = graph.load(tmp_path / "out" / MODEL_FILE)
    operators = {node.op_type for node in model.graph.node}
    assert operators & {"MatMulNBits", "MatMulInteger"}
    assert built.facts["linear_layers"] > 4
    exact = mean_loss(OnnxDecoder(exported_gpt2 / MODEL_FILE), HELD_OUT)
    assert abs(mean_loss(OnnxDecoder(tmp_path / "out" / MODEL_FILE), HELD_OUT) - exact) < 0.15


@pytest.mark.parametrize(("block", "symmetric"), [(16, True), (64, False)])
def test_blocks_have_the_requested_size_and_zero_points(block, symmetric, exported, tmp_path):
    apply("onnx/int4-weight-only", exported, tmp_path / "out", block_size=block, symmetric=symmetric)
    nodes = [n for n in graph.load(tmp_path / "out" / MODEL_FILE).graph.node if n.op_type == "MatMulNBits"]
    settings = [graph.attributes_of(node) for node in nodes]
    assert {values["block_size"] for values in settings} == {block}
    # The head has 8 bits.
    assert sorted(values["bits"] for values in settings) == [4] * 28 + [8]
    four_bit = next(node for node, values in zip(nodes, settings, strict=True) if values["bits"] == 4)
    assert (len(four_bit.input) > 3 and bool(four_bit.input[3])) is not symmetric


@pytest.mark.slow(1)
@pytest.mark.parametrize("block", [16, 32])
def test_a_tied_head_in_4_bits_is_also_the_embedding(block, exported, exact_loss, tmp_path):
    apply("onnx/int4-weight-only", exported, tmp_path / "out", block_size=block, head_bits=4)
    model = graph.load(tmp_path / "out" / MODEL_FILE)
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert {graph.attributes_of(node)["bits"] for node in products} == {4}
    packed, scales, _ = lookup_table(model)
    steps = np.stack([packed & 15, packed >> 4], axis=-1).reshape(EMBEDDING).astype(np.float32) - 8
    values = steps * np.repeat(scales, block, axis=1)
    assert np.abs(values - embedding(exported)).max() <= 1.01 * float(np.abs(scales).max())
    # Lookups and the head use the same numbers, which shows in the logits.
    loss = mean_loss(OnnxDecoder(tmp_path / "out" / MODEL_FILE), HELD_OUT)
    assert abs(loss - exact_loss) < 0.15


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_head_bits_without_a_kernel_are_refused(bits):
    recipe = find_recipe("onnx", "int4-weight-only")
    with pytest.raises(UsageError, match=f"head_bits {bits} is not possible: use 4 or 8"):
        recipe.resolve_options((("head_bits", bits),))


def test_an_impossible_block_size_is_refused():
    for name in ("int8-weight-only", "int4-weight-only", "int8-mixed"):
        recipe = find_recipe("onnx", name)
        with pytest.raises(UsageError, match="block_size 33 is not possible: use 16, 32, 64, 128 or 256"):
            recipe.resolve_options((("block_size", 33),))


PLANTED = "model.layers.2.mlp.down_proj"


@pytest.fixture(scope="module")
def spoiled(exported, tmp_path_factory) -> Path:
    """Return the model with a huge channel of one layer's input, and the weight that reads it small: the same function."""
    folder = tmp_path_factory.mktemp("spoiled")
    model = graph.load(exported / MODEL_FILE)
    weights = graph.weights_of(model)

    def scale(module: str, index, factor: float) -> None:
        layer = next(layer for layer in graph.linears(model) if layer.module == module)
        values = numpy_helper.to_array(weights[layer.weight]).copy()
        values[index] *= factor
        weights[layer.weight].CopyFrom(numpy_helper.from_array(values, layer.weight))

    scale("model.layers.2.mlp.up_proj", (slice(None), 7), 3000.0)
    scale(PLANTED, (7, slice(None)), 1 / 3000.0)
    graph.save(model, folder / MODEL_FILE)
    shutil.copy(exported / "config.json", folder)
    assert mean_loss(OnnxDecoder(folder / MODEL_FILE), HELD_OUT) == pytest.approx(
        mean_loss(OnnxDecoder(exported / MODEL_FILE), HELD_OUT), abs=1e-3
    )
    return folder


@pytest.mark.slow(1)
def test_a_planted_outlier_is_ranked_first(spoiled):
    model = graph.load(spoiled / MODEL_FILE)
    ranked = worst_first(rank(model, graph.linears(model), CALIBRATION, DYNAMIC))
    assert PLANTED.replace(".", "/") in ranked[0].node.replace("layers.", "layers/")
    assert ranked[0].error > 5 * ranked[1].error


def generated_rows(folder: Path) -> tuple[tuple[int, ...], ...]:
    """Generate rows by the model: of other text, random weights have almost the same loss whatever changes."""
    decoder = OnnxDecoder(folder / MODEL_FILE)
    ids = np.array([row[:4] for row in CALIBRATION])
    for _ in range(44):
        logits, _ = decoder.run(ids, np.ones_like(ids), keep=1)
        ids = np.concatenate([ids, logits[:, -1].argmax(axis=1)[:, None]], axis=1)
    return tuple(map(tuple, ids.tolist()))


@pytest.mark.slow(1)
def test_the_most_sensitive_layer_stays_in_float(spoiled, tmp_path):
    (tmp_path / "out").mkdir()
    rows = generated_rows(spoiled)
    options = {"keep_quality": "0.2%", "calibration_tokens": 256}
    built = int8_dynamic(Job(spoiled, tmp_path / "out", options, rows))
    number = built.facts["left_out_layers"]
    assert number >= 1
    assert built.ranking[0]["layer"] == PLANTED
    assert [row["left_out"] for row in built.ranking] == [index < number for index in range(len(built.ranking))]
    assert built.attempts[0]["left_out"] == 0
    assert built.attempts[0]["increase"] > 0.002
    assert PLANTED in {layer.module for layer in graph.linears(graph.load(tmp_path / "out" / MODEL_FILE))}
    increase = mean_loss(OnnxDecoder(tmp_path / "out" / MODEL_FILE), rows) - mean_loss(
        OnnxDecoder(spoiled / MODEL_FILE), rows
    )
    assert increase <= math.log(1.002) + 1e-6


@pytest.mark.slow(3)
def test_layers_too_sensitive_for_4_bits_get_8_and_the_bound_holds(exported, generated, build):
    folder, built = build(MIXED)
    left_out = {row["layer"] for row in built.ranking if row["left_out"]}
    assert 1 <= len(left_out) == built.facts["left_out_layers"] < 28
    assert built.facts["weight_bits"] == 4
    nodes = [n for n in graph.load(folder / MODEL_FILE).graph.node if n.op_type == "MatMulNBits"]
    bits = [graph.attributes_of(node)["bits"] for node in nodes]
    assert sorted(bits) == [4] * (28 - len(left_out)) + [8] * (len(left_out) + 1)  # and the head
    # On the held-out row.
    files = (folder / MODEL_FILE, exported / MODEL_FILE)
    loss, exact = (mean_loss(OnnxDecoder(file), generated[:: weight_only.HELD_OUT]) for file in files)
    assert loss - exact <= math.log(1.15) + 1e-6


@pytest.mark.slow(2)
def test_gptq_loses_less_than_rounding_to_the_nearest(exported, generated, build):
    folders = (build("onnx/int4-gptq")[0], build("onnx/int4-weight-only")[0], exported)
    gptq, nearest, exact = (mean_loss(OnnxDecoder(folder / MODEL_FILE), generated) for folder in folders)
    assert abs(gptq - exact) < 0.5 * abs(nearest - exact)


def test_input_products_too_large_for_memory_are_computed_in_groups(exported, monkeypatch):
    model = graph.load(exported / MODEL_FILE)
    layers = graph.linears(model)
    monkeypatch.setattr(weight_only, "MOST_PRODUCTS", 4 * 600**2)
    groups = list(weight_only._groups_in_memory(layers))
    assert [layer for group in groups for layer in group] == list(layers)
    assert len(groups) > 1
    for group in groups:
        sizes = {layer.source: 4 * layer.shape[0] ** 2 for layer in group}
        assert sum(sizes.values()) <= weight_only.MOST_PRODUCTS


@pytest.mark.parametrize(
    ("machine", "flags", "name"),
    [
        ("x86_64", {"avx2", "avx512f", "avx512_vnni"}, "avx512_vnni"),
        ("x86_64", {"avx2", "avx512f"}, "avx512"),
        ("AMD64", {"avx2"}, "avx2"),
        ("arm64", set(), "arm64"),
    ],
)
def test_the_configuration_follows_the_cpu(machine, flags, name):
    assert instruction_set(machine, frozenset(flags)) == name


@pytest.mark.parametrize(("machine", "flags"), [("x86_64", {"sse2"}), ("riscv64", set())])
def test_a_cpu_without_int8_instructions_is_refused_in_one_line(machine, flags):
    with pytest.raises(ScenarioError, match=r"no int8 configuration fits this CPU.*use a weight-only recipe") as caught:
        instruction_set(machine, frozenset(flags))
    assert caught.value.kind == "unsupported"


def test_the_error_for_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(UsageError, match="the onnx backend has no quantization 'int3': use none, int8-weight-only"):
        find_recipe("onnx", "int3")


@pytest.mark.slow(1)
def test_a_quantized_graph_is_still_a_decoder_with_a_cache(build):
    folder, _ = build("onnx/int8-mixed")
    decoder = OnnxDecoder(folder / MODEL_FILE)
    ids = np.array([HELD_OUT[0][:9]])
    every, _ = decoder.run(ids, np.ones_like(ids))
    _, past = decoder.run(ids[:, :-1], np.ones_like(ids[:, :-1]), keep=1)
    last, _ = decoder.run(ids[:, -1:], np.ones_like(ids), past, keep=1)
    # Activation ranges differ from call to call, so logits do, too.
    assert np.corrcoef(last[0, -1], every[0, -1])[0, 1] > 0.99
