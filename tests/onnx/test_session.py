"""`auto` is a GPU only if this build of ONNX Runtime supports it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llmtrack.onnx import session


@pytest.mark.parametrize(
    ("requested", "provider", "gpu", "providers", "expected"),
    [
        ("auto", "auto", "cuda:0", ["CUDA", "CPU"], "cuda:0"),
        ("auto", "auto", "cuda:0", ["Azure", "CPU"], "cpu"),
        ("auto", "auto", "cpu", ["CUDA", "CPU"], "cpu"),
        ("cuda", "auto", "cuda:0", ["CPU"], "cuda:0"),
        ("auto", "CUDA", "cuda:0", ["CPU"], "cuda:0"),
    ],
)
def test_auto_is_a_gpu_only_if_onnx_runtime_can_use_it(monkeypatch, requested, provider, gpu, providers, expected):
    available = [f"{name}ExecutionProvider" for name in providers]
    monkeypatch.setattr(session, "onnxruntime", lambda: SimpleNamespace(get_available_providers=lambda: available))
    monkeypatch.setattr(session, "resolve_device", lambda requested: gpu)
    assert session.find_device(requested, provider) == expected
