"""Sessions of ONNX Runtime: their device, and how their threads wait."""

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


def test_threads_spin_in_a_session_to_time_and_sleep_in_one_to_build(exported, monkeypatch):
    import onnxruntime

    from llmtrack.engines.onnx import open_folder
    from llmtrack.onnx import graph
    from llmtrack.quantize.sensitivity import opened

    entries = []

    class Recorded(onnxruntime.SessionOptions.__base__):  # without what the tests set
        def add_session_config_entry(self, key, value):
            entries.append((key, value))
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Recorded)
    open_folder(exported)
    assert entries == []
    with opened(graph.load(exported / session.MODEL_FILE)):
        pass
    assert entries == [("session.intra_op.allow_spinning", "0")]
