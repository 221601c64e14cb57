"""GPTQ by hand, against plain rounding, and as ONNX Runtime reads it."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrack.quantize.gptq import Rounded, gptq, grid, packed

RANDOM = np.random.default_rng(0)


def back(rounded: Rounded, block_size: int) -> np.ndarray:
    """Dequantize steps, scales and zero points to (inputs, outputs)."""
    inputs = len(rounded.steps)
    scales, zeros = (np.repeat(each, block_size, axis=0)[:inputs] for each in (rounded.scales, rounded.zeros))
    return (rounded.steps.astype(float) - zeros) * scales


def test_without_correlation_every_weight_is_rounded_to_the_nearest():
    weight = RANDOM.normal(size=(32, 5)).astype(np.float32)
    made = gptq(weight, np.eye(32), 16)
    for block in (0, 1):
        part = weight[16 * block : 16 * block + 16]
        nearest = np.clip(np.round(part / made.scales[block]) + made.zeros[block], 0, 15)
        assert (made.steps[16 * block : 16 * block + 16] == nearest).all()


def test_an_input_makes_up_for_the_error_of_its_twin():
    # Two inputs that are always alike: only the sum of their weights counts. The third and fourth set the scale.
    weight = np.array([[0.4], [0.4], [-8.0], [7.0]], dtype=np.float32)
    products = np.diag([1.0, 1.0, 10.0, 10.0])
    products[0, 1] = products[1, 0] = 1.0
    made = gptq(weight, products, 4)
    assert (made.scales[0, 0], made.zeros[0, 0]) == (pytest.approx(1.0), 8)
    # Each alone is rounded to 0, and 0.8 would be lost; together they make 1.
    assert (made.steps[:2, 0].astype(int) - 8).tolist() == [0, 1]


@pytest.mark.parametrize("inputs", [64, 40])
def test_what_a_layer_returns_changes_less_than_by_plain_rounding(inputs):
    mixing = RANDOM.normal(size=(inputs, inputs)) * np.geomspace(1, 0.01, inputs)[:, None]
    given = RANDOM.normal(size=(400, inputs)) @ mixing
    weight = RANDOM.normal(size=(inputs, 24)).astype(np.float32)

    def error(products):
        return ((given @ (back(gptq(weight, products, 16), 16) - weight)) ** 2).sum()

    assert error(given.T @ given) < 0.6 * error(np.eye(inputs))


def test_a_range_is_cut_where_that_costs_less_and_not_where_the_value_counts():
    # 15 steps from -15 to 0 lose every 0.45; a little finer ones do not reach -15.
    values = np.concatenate([np.array([[-15.0]]), np.full((999, 1), -0.45)])
    scale, _ = grid(values, np.ones(1000))
    assert scale[0] < 0.95
    scale, zero = grid(values, np.array([1e9] + [1.0] * 999))
    assert scale[0] * (np.clip(np.round(-15.0 / scale) + zero, 0, 15) - zero)[0] == pytest.approx(-15.0, abs=1e-3)


def test_values_of_one_sign_have_all_steps():
    scale, zero = grid(np.linspace(0, 15, 16)[:, None], np.ones(16))
    assert (scale[0], zero[0]) == (pytest.approx(1.0), 0)


def test_what_is_never_seen_or_always_zero_is_rounded_all_the_same():
    weight = RANDOM.normal(size=(16, 2)).astype(np.float32)
    assert np.abs(back(gptq(weight, np.zeros((16, 16)), 16), 16) - weight).max() < 0.5
    assert (back(gptq(np.zeros((16, 2)), np.eye(16), 16), 16) == 0).all()


def test_two_steps_share_a_byte_the_first_in_its_low_half_and_what_is_short_is_filled():
    steps = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.uint8)
    made = Rounded(steps, np.float32([[0.5, 0.25]]), np.array([[7, 9]], dtype=np.uint8))
    blocks, scales, zeros = packed(made, 4)
    assert blocks.tolist() == [[[0x31, 0x05]], [[0x42, 0x06]]]
    assert scales.tolist() == [[0.5], [0.25]]
    assert zeros.tolist() == [[0x07], [0x09]]
