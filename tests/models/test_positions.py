from __future__ import annotations

import pytest

from llmtrack.models.positions import context_length


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 512}, 512),
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": 0}, None),
        ({"max_position_embeddings": 64, "rope_scaling": None}, 64),
        ({"max_position_embeddings": 64, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 256),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.5}}, 160),
        ({"max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 256),
        # Some configs with yarn give the scaled length.
        (
            {
                "max_position_embeddings": 256,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            },
            256,
        ),
        # Llama 3: the length is longer than the original times the factor.
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
        # Phi-3: a list of factors per frequency, beside the original length.
        (
            {
                "max_position_embeddings": 4096,
                "original_max_position_embeddings": 64,
                "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
            },
            4096,
        ),
        # The spelling of version 5, also per kind of layer.
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
            },
            128,
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            512,
        ),
    ],
)
def test_context_length(config, expected):
    assert context_length(config) == expected
