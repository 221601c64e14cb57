"""Errors of a converter are explained in one line."""

from __future__ import annotations

import json

import pytest

from llmtrack.convert import conversion
from llmtrack.convert.conversion import explaining_unsupported
from llmtrack.convert.openvino import CONVERTER
from llmtrack.errors import ScenarioError


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "Maximum required is 5.0, got: 5.5.4",
            "openvino's exporter supports gemma3 only with transformers 5.0 or older, and the environment that it runs in has "
            "5.5.4: use backend=torch or onnx",
        ),
        (
            "Minimum required is 5.10, got: 5.5.4",
            "openvino's exporter supports gemma3 only with transformers 5.10 or newer, and the environment that it runs in "
            "has 5.5.4: use backend=torch or onnx",
        ),
        ("KeyError: 'rope_type'", "openvino's exporter does not support gemma3: use backend=torch or onnx"),
        ("KeyError: 'multi_cache'", "openvino's exporter does not support gemma3: use backend=torch or onnx"),
        ("NotImplementedError: The gemma3 model is not currently supported.", "does not support gemma3"),
        (
            "ValueError: Trying to export a gemma3 model, that is a custom or unsupported architecture",
            "does not support gemma3",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "openvino's exporter cannot convert this gemma3 model (trying failed: OSError: [Errno 28] No space left on "
            "device): use backend=torch or onnx",
        ),
    ],
)
def test_a_model_that_a_tool_does_not_support_is_one_line(tmp_path, monkeypatch, output, message):
    monkeypatch.setattr(conversion, "_onnx_supports", lambda architecture: architecture == "gemma3")
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    with pytest.raises(ScenarioError) as caught, explaining_unsupported(CONVERTER, tmp_path):
        raise ScenarioError(f"trying failed: {output}", kind="unsupported")
    assert message in str(caught.value)
    assert caught.value.kind == "unsupported"
    assert "\n" not in str(caught.value)


@pytest.mark.slow(9)
def test_only_backends_that_support_the_model_are_suggested(tmp_path, monkeypatch):
    def suggested(architecture):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
        with pytest.raises(ScenarioError) as caught, explaining_unsupported(CONVERTER, tmp_path):
            raise ScenarioError("NotImplementedError: no such model", kind="unsupported")
        return str(caught.value).rpartition("use backend=")[2]

    known = ("llama", "gemma3_text", "gpt_oss")
    unknown = ("gemma3n", "no_such_model", "?")
    if conversion.available("onnx"):
        assert {suggested(name) for name in known} == {"torch or onnx"}
    assert {suggested(name) for name in unknown} == {"torch"}
    monkeypatch.setattr(conversion, "available", lambda backend: False)
    assert {suggested(name) for name in known} == {"torch"}


def test_running_out_of_memory_is_not_reported_as_an_unsupported_model(tmp_path):
    with pytest.raises(ScenarioError, match=r"^killed$") as caught, explaining_unsupported(CONVERTER, tmp_path):
        raise ScenarioError("killed", kind="out_of_memory")
    assert caught.value.kind == "out_of_memory"
