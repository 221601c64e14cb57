"""Errors of layers by hand, a planted outlier, and the search with known losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
from llmtrack.onnx import graph, session
from llmtrack.quantize.sensitivity import (
    DYNAMIC,
    STATIC,
    Attempt,
    LayerError,
    Rounding,
    fewest_left_out,
    layer_error,
    mean_loss,
    opened,
    quantize_activation,
    quantize_weight,
    worst_first,
)


def test_a_weight_is_rounded_per_column():
    weight = np.array([[127.0, 0.5], [50.4, 0.004]])
    # Scales 1 and 0.5/127: 50.4 becomes 50; 0.004 is 1.016 steps, so one step.
    assert quantize_weight(weight) == pytest.approx(np.array([[127.0, 0.5], [50.0, 0.5 / 127]]))


def test_few_bits_round_more_coarsely():
    # 7 bits: 63 steps of 127/63.
    assert quantize_weight(np.array([[127.0], [50.4]]), bits=7)[1, 0] == pytest.approx(25 * 127 / 63)


def test_each_block_of_a_column_has_a_scale_and_the_last_may_be_short():
    weight = np.array([[7.0], [3.4], [0.7], [0.34], [14.0]])
    # 4 bits: steps of 1, 0.1 and 2.
    rounded = quantize_weight(weight, bits=4, block_size=2)
    assert rounded == pytest.approx(np.array([[7.0], [3.0], [0.7], [0.3], [14.0]]))


def test_weight_only_rounding_keeps_activations_exact():
    # 8-bit activations would lose 0.5 beside 255; here 3.4 becomes 3, and both tokens lose the same share.
    rows, weight = [np.array([[0.0, 255.0], [0.0, 0.5]])], np.array([[7.0], [3.4]])
    assert layer_error(rows, weight, Rounding("none", 4)) == pytest.approx((0.4 / 3.4) ** 2)
    assert layer_error(rows, weight, Rounding("none", 4, block_size=1)) == pytest.approx(0.0, abs=1e-12)


def test_activations_have_255_steps_including_zero():
    # From -51 to 204 a step is 1, and values outside are clipped.
    values = quantize_activation(np.array([-60.0, -50.7, 0.0, 0.4, 203.6, 999.0]), -51.0, 204.0)
    assert values.tolist() == [-51.0, -51.0, 0.0, 0.0, 204.0, 204.0]
    # A range without 0 is extended to it.
    assert quantize_activation(np.array([10.0]), 10.0, 255.0).tolist() == [10.0]


def test_the_error_is_the_mean_over_tokens_of_a_ratio():
    # One call of two tokens; weights are exact. Range 0 to 255, step 1: 0.5 rounds to 0 (to even), 255 stays.
    rows, weight = [np.array([[255.0], [0.5]])], np.array([[127.0]])
    # Token 1 loses nothing, token 2 everything: (0 + 1) / 2.
    assert layer_error(rows, weight, DYNAMIC) == pytest.approx(0.5)


def test_a_static_range_is_shared_by_calls_and_a_dynamic_one_is_not():
    rows, weight = [np.array([[255.0]]), np.array([[0.5]])], np.array([[127.0]])
    assert layer_error(rows, weight, STATIC) == pytest.approx(0.5)
    # Alone in its call, 0.5 is the end of the range, and exact.
    assert layer_error(rows, weight, DYNAMIC) == pytest.approx(0.0, abs=1e-12)


def test_signal_to_noise_in_decibels():
    assert LayerError("a", 0.01, 1).sqnr_db == pytest.approx(20.0)


@given(st.integers(0, 4), st.integers(0, 10_000))
def test_a_planted_outlier_layer_is_ranked_first(planted, seed):
    random = np.random.default_rng(seed)
    errors = []
    for number in range(5):
        x, weight = random.normal(size=(16, 8)), random.normal(size=(8, 8))
        if number == planted:
            x[3, 2] = 3000  # one value of one token, which widens the range of all
        errors.append(LayerError(f"layer{number}", layer_error([x], weight, DYNAMIC), 64))
    assert worst_first(errors)[0].node == f"layer{planted}"


def test_no_layer_is_excluded_if_the_bound_holds():
    assert fewest_left_out(lambda number: 2.0, 160, 2.0) == (0, (Attempt(0, 2.0),))


def test_the_search_doubles_and_then_bisects():
    tried = []

    def loss(number):
        tried.append(number)
        return 2.0 if number >= 23 else 3.0

    number, attempts = fewest_left_out(loss, 160, 2.5)
    # A sixteenth, doubled until the bound holds; then bisected, until the gap is an eighth: 23 is in (22, 25].
    assert tried == [0, 10, 20, 40, 30, 25, 22]
    assert number == 25
    assert [attempt.left_out for attempt in attempts] == tried


def test_all_layers_are_excluded_if_nothing_less_suffices():
    number, attempts = fewest_left_out(lambda number: 3.0, 20, 2.5)
    assert number == 20
    assert [attempt.left_out for attempt in attempts] == [0, 1, 2, 4, 8, 16]


@given(st.integers(1, 300), st.integers(0, 300))
def test_the_number_keeps_the_bound_and_is_near_the_minimum(layers, least):
    number, _ = fewest_left_out(lambda number: float(number < least), layers, 0.5)
    assert number >= min(least, layers)
    if least <= layers and number < layers:
        assert number - least <= max(1, number // 8)


def test_a_graph_too_large_for_a_message_stays_in_its_file_while_it_is_used(exported, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason=MISSING)
    model, rows = graph.load(exported / session.MODEL_FILE), [[1, 2, 3, 4]]
    with opened(model, tmp_path) as decoder:
        expected = mean_loss(decoder, rows)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(graph, "MAX_EMBEDDED_BYTES", 0)
    monkeypatch.setattr(session, "_MOST_SCORES", 0)  # a long prompt opens the graph again
    with opened(model, tmp_path) as decoder:
        assert mean_loss(decoder, rows) == pytest.approx(expected, abs=1e-5)
    assert list(tmp_path.iterdir()) == []
