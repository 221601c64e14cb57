"""Resolve requested dtypes and devices, and label what is used."""

from __future__ import annotations

import pytest
import torch

from llmtrack import devices
from llmtrack.devices import canonical_dtype, choose_dtype, resolve_device, resolve_dtype, stored_label
from llmtrack.errors import UsageError

ALIASES = {
    "float32": ["float32", "fp32", "float", "torch.float32"],
    "float16": ["float16", "fp16", "half", "torch.float16"],
    "bfloat16": ["bfloat16", "bf16", "torch.bfloat16"],
}


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("change", [str, str.upper, str.title, lambda alias: f" {alias} "])
def test_aliases_in_any_case(name, change):
    assert [canonical_dtype(change(alias)) for alias in ALIASES[name]] == [name] * len(ALIASES[name])


@pytest.mark.parametrize("name", ["int8", "", "float64", "f16", "none"])
def test_an_unknown_dtype_lists_the_accepted_ones(name):
    with pytest.raises(UsageError) as caught:
        resolve_dtype(name)
    for alias in devices.DTYPE_ALIASES:
        assert alias in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("requested", "device", "bfloat16", "expected"),
    [
        ("float32", "cpu", True, ("float32", "float32")),
        ("fp16", "cpu", True, ("float32", "float32 (forced on CPU)")),
        ("fp16", "cpu", False, ("float32", "float32 (forced on CPU)")),
        ("bf16", "cpu", True, ("bfloat16", "bfloat16")),
        ("bf16", "cpu", False, ("float32", "float32 (bfloat16 not supported on CPU)")),
        ("fp16", "cuda", True, ("float16", "float16")),
        ("fp16", "cuda:1", False, ("float16", "float16")),
        ("bf16", "cuda:0", True, ("bfloat16", "bfloat16")),
        ("bf16", "cuda:0", False, ("float16", "float16 (bfloat16 not supported on this GPU)")),
        ("fp32", "cuda:0", False, ("float32", "float32")),
    ],
)
def test_the_dtype_and_label_of_a_request(requested, device, bfloat16, expected):
    assert choose_dtype(requested, device, bfloat16) == expected


@pytest.mark.parametrize("alias", ["float16", "FP16", "half", "torch.float16"])
def test_float16_on_cpu_becomes_float32(alias):
    assert resolve_dtype(alias, "cpu") == (torch.float32, "float32 (forced on CPU)")


def test_unsupported_bfloat16_falls_back(monkeypatch):
    monkeypatch.setattr(devices, "supports_bfloat16", lambda kind: False)
    assert resolve_dtype("bf16", "cpu") == (torch.float32, "float32 (bfloat16 not supported on CPU)")
    assert resolve_dtype("bf16", "cuda:0") == (torch.float16, "float16 (bfloat16 not supported on this GPU)")


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("requested", "count", "expected"),
    [
        ("auto", 0, "cpu"),
        ("AUTO", 2, "cuda:0"),
        ("cpu", 2, "cpu"),
        (" CPU ", 0, "cpu"),
        ("cuda", 2, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_the_device_of_a_request(monkeypatch, requested, count, expected):
    gpus(monkeypatch, count)
    assert resolve_device(requested) == expected


@pytest.mark.parametrize(
    ("requested", "count", "message"),
    [
        ("cuda", 0, "sees no GPU; use device=cpu"),
        ("cuda:0", 0, "sees no GPU"),
        ("cuda:2", 2, r"this machine has 2 GPU\(s\)"),
        ("tpu", 0, "unknown device 'tpu': use auto, cpu, cuda, cuda:N, xpu, xpu:N or mps"),
        ("cuda:x", 2, "unknown device"),
        ("cuda:-1", 2, "unknown device"),
        ("cpu:1", 2, "unknown device"),
        ("", 2, "unknown device"),
        ("xpu", 2, "sees no xpu device; use device=cpu"),
        ("mps", 0, "sees no mps device; use device=cpu"),
    ],
)
def test_unavailable_devices_are_refused(monkeypatch, requested, count, message):
    gpus(monkeypatch, count)
    with pytest.raises(UsageError, match=message):
        resolve_device(requested)


@pytest.mark.parametrize(
    ("counts", "chosen", "label"),
    [
        ({"float32": 5}, "float32", "float32"),
        ({"float32": 5}, "float32 (forced on CPU)", "float32 (forced on CPU)"),
        ({"bfloat16": 5}, "float32 (forced on CPU)", "bfloat16"),
        ({"bfloat16": 5}, "", "bfloat16"),
        ({"bfloat16": 3, "float32": 1}, "bfloat16", "mixed (bfloat16 75.0 %, float32 25.0 %)"),
        ({"float32": 1, "bfloat16": 9999}, "bfloat16", "mixed (bfloat16 >99.9 %, float32 <0.1 %)"),
        (
            {"float32": 3, "float16": 1},
            "float32 (forced on CPU)",
            "mixed (float32 75.0 %, float16 25.0 %), float32 (forced on CPU)",
        ),
        ({"int8": 2, "bfloat16": 1, "float32": 1}, "bfloat16", "mixed (int8 50.0 %, bfloat16 25.0 %, float32 25.0 %)"),
        ({"float32": 3, "int8": 1}, "int8 weights (float32)", "int8 weights (float32)"),
    ],
)
def test_the_label_of_stored_weights(counts, chosen, label):
    assert stored_label(counts, chosen) == label
