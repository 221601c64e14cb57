"""GPTQ by hand, against plain rounding, and its packed format."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrack.quantize.gptq import Rounded, factored, gptq, grid, pack

RANDOM = np.random.default_rng(0)


def dequantize(rounded: Rounded, block_size: int) -> np.ndarray:
    """Dequantize steps, scales and zero points to (inputs, outputs)."""
    inputs = len(rounded.steps)
    scales, zeros = (np.repeat(blocks, block_size, axis=0)[:inputs] for blocks in (rounded.scales, rounded.zeros))
    return (rounded.steps.astype(float) - zeros) * scales


def test_without_correlation_every_weight_is_rounded_to_the_nearest():
    weight = RANDOM.normal(size=(32, 5)).astype(np.float32)
    rounded = gptq(weight, *factored(np.eye(32)), 16)
    for block in (0, 1):
        part = weight[16 * block : 16 * block + 16]
        nearest = np.clip(np.round(part / rounded.scales[block]) + rounded.zeros[block], 0, 15)
        assert (rounded.steps[16 * block : 16 * block + 16] == nearest).all()


def test_a_correlated_input_compensates_an_error():
    # Two inputs that are always equal: only the sum of their weights counts. The third and fourth set the scale.
    weight = np.array([[0.4], [0.4], [-8.0], [7.0]], dtype=np.float32)
    products = np.diag([1.0, 1.0, 10.0, 10.0])
    products[0, 1] = products[1, 0] = 1.0
    rounded = gptq(weight, *factored(products), 4)
    assert (rounded.scales[0, 0], rounded.zeros[0, 0]) == (pytest.approx(1.0), 8)
    # Rounded individually, both would be 0 and 0.8 lost; together they make 1.
    assert (rounded.steps[:2, 0].astype(int) - 8).tolist() == [0, 1]


@pytest.mark.parametrize("inputs", [64, 40])
def test_the_layers_output_changes_less_than_by_plain_rounding(inputs):
    mixing = RANDOM.normal(size=(inputs, inputs)) * np.geomspace(1, 0.01, inputs)[:, None]
    values = RANDOM.normal(size=(400, inputs)) @ mixing
    weight = RANDOM.normal(size=(inputs, 24)).astype(np.float32)

    def error(products):
        return ((values @ (dequantize(gptq(weight, *factored(products), 16), 16) - weight)) ** 2).sum()

    assert error(values.T @ values) < 0.6 * error(np.eye(inputs))


def test_a_range_is_clipped_unless_the_extreme_value_is_important():
    # 15 steps from -15 to 0 round every -0.45 to 0; slightly finer ones do not reach -15.
    values = np.concatenate([np.array([[-15.0]]), np.full((999, 1), -0.45)])
    scale, _ = grid(values, np.ones(1000))
    assert scale[0] < 0.95
    scale, zero = grid(values, np.array([1e9] + [1.0] * 999))
    assert scale[0] * (np.clip(np.round(-15.0 / scale) + zero, 0, 15) - zero)[0] == pytest.approx(-15.0, abs=1e-3)


def test_values_of_one_sign_use_all_steps():
    scale, zero = grid(np.linspace(0, 15, 16)[:, None], np.ones(16))
    assert (scale[0], zero[0]) == (pytest.approx(1.0), 0)


def test_inactive_inputs_and_zero_weights_are_rounded():
    weight = RANDOM.normal(size=(16, 2)).astype(np.float32)
    assert np.abs(dequantize(gptq(weight, *factored(np.zeros((16, 16))), 16), 16) - weight).max() < 0.5
    assert (dequantize(gptq(np.zeros((16, 2)), *factored(np.eye(16)), 16), 16) == 0).all()


def test_two_steps_share_a_byte_and_a_short_block_is_padded():
    steps = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.uint8)
    rounded = Rounded(steps, np.float32([[0.5, 0.25]]), np.array([[7, 9]], dtype=np.uint8))
    blocks, scales, zeros = pack(rounded, 4)
    assert blocks.tolist() == [[[0x31, 0x05]], [[0x42, 0x06]]]
    assert scales.tolist() == [[0.5], [0.25]]
    assert zeros.tolist() == [[0x07], [0x09]]
