"""Lengths at which an export is checked, and attention that is not fused, by the config alone."""

from __future__ import annotations

import pytest

from llmtrack.onnx.lengths import check_lengths, rope_kind, thresholds, why_not_fused, windows

LLAMA = {"max_position_embeddings": 4096, "rope_theta": 1e4, "rope_scaling": None, "sliding_window": None}
SMALL = 10**6


def scaled(kind, **settings):
    return {"rope_scaling": {"rope_type": kind, **settings}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (48,)),
        ({"max_position_embeddings": 32}, (32,)),
        ({"sliding_window": 64}, (48, 64, 80)),
        ({"sliding_window": 8}, (8, 24, 48)),
        ({"attention_chunk_size": 128}, (48, 128, 144)),
        ({"original_max_position_embeddings": 256}, (48, 256, 272)),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=1024), (48, 1024, 1040)),
        # Beyond the unscaled context, which scaling extends.
        ({"max_position_embeddings": 64, **scaled("dynamic", factor=4.0)}, (48, 64, 80)),
        ({"max_position_embeddings": 64, **scaled("linear", factor=1.125)}, (48, 64, 72)),
        ({"sliding_window": 64, "original_max_position_embeddings": 512}, (48, 64, 80, 512, 528)),
        # Out of reach: 32k tokens would take minutes.
        ({"max_position_embeddings": 131072, "original_max_position_embeddings": 32768}, (48,)),
        # Not lengths.
        (
            {
                "max_window_layers": 64,
                "sliding_window_pattern": 6,
                "max_length": 20,
                "num_local_experts": 100,
            },
            (48,),
        ),
    ],
)
def test_an_export_is_checked_on_both_sides_of_every_threshold(changes, expected):
    assert check_lengths({**LLAMA, **changes}, SMALL) == expected


def test_a_conversion_with_a_shorter_context_is_checked_within_it():
    config = {**LLAMA, "sliding_window": 64, **scaled("yarn", factor=4.0, original_max_position_embeddings=1024)}
    assert check_lengths(config, SMALL) == (48, 64, 80, 1024, 1040)
    assert check_lengths(config, SMALL, longest=1024) == (48, 64, 80, 1024)
    assert check_lengths(config, SMALL, longest=70) == (48, 64, 70)


@pytest.mark.parametrize(("parameters", "longest"), [(10**6, 528), (135 * 10**6, 528), (10**9, 48), (8 * 10**9, 48)])
def test_a_large_model_is_checked_only_at_short_lengths(parameters, longest):
    assert check_lengths({**LLAMA, "sliding_window": 512}, parameters)[-1] == longest


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        (scaled("linear", factor=2.0), ""),
        (scaled("yarn", factor=2.0), ""),
        (scaled("llama3", factor=8.0), ""),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ""),
        (scaled("dynamic", factor=2.0), "dynamic rotary positions"),
        (scaled("longrope"), "longrope rotary positions"),
        (scaled("something new"), "something new rotary positions"),
        ({"sliding_window": 64}, "a window of 64 tokens"),
        ({"sliding_window": 4096}, ""),
        ({"sliding_window": 64, "use_sliding_window": False}, ""),
        ({"sliding_window": 64, "layer_types": ["full_attention", "full_attention"]}, ""),
        (
            {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]},
            "a window of 64 tokens",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of several kinds"),
        ({"attention_chunk_size": 128}, "a window of 128 tokens"),
        ({"attention_types": [[["global", "local"], 2]], "window_size": 256}, "a window of 256 tokens"),
        ({"alibi": True}, "biases by distance"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, ""),
        ({"id2label": {0: "LABEL_0"}}, ""),
    ],
)
def test_attention_that_cannot_be_fused_is_recognized_by_the_config(changes, why):
    assert why_not_fused({**LLAMA, **changes}) == why


def test_nested_settings_are_read():
    assert rope_kind({}) == rope_kind(LLAMA) == "default"
    assert windows({**LLAMA, "attention": {"window_size": 100}}) == (100,)
    assert thresholds({**LLAMA, "attention": {"window_size": 100}}) == (100,)
