"""Planning: dtypes forced by the machine, equal scenarios, and shared engines."""

from __future__ import annotations

import pytest

from llmtrack.errors import UsageError
from llmtrack.run.study.plan import make_plan
from llmtrack.spec.scenario import Variant
from tests.run.scenarios import generating, scoring

CPU = {"devices": "cpu", "bfloat16": "cpu"}
OLD_CPU = {"devices": "cpu", "bfloat16": ""}
GPU = {"devices": "cpu,cuda:0", "bfloat16": "cpu,cuda"}
MODEL = "synthetic:tiny"


def scenario_in(dtype, device="auto", **settings):
    return generating(dtype, Variant(MODEL, dtype=dtype, device=device), **settings)


def names(plan):
    return [[scenario.name for scenario in group] for group in plan.groups]


def same(plan):
    return [(same.scenario.name, same.measured.name, same.dtype_label) for same in plan.same]


ALL = [scenario_in("float32"), scenario_in("float16"), scenario_in("bfloat16")]


def test_float16_on_a_cpu_is_measured_as_float32_once():
    plan = make_plan(ALL, CPU)
    assert names(plan) == [["float32"], ["bfloat16"]]
    assert same(plan) == [("float16", "float32", "float32 (forced on CPU)")]


def test_a_cpu_without_bfloat16_measures_float32_only():
    plan = make_plan(ALL, OLD_CPU)
    assert names(plan) == [["float32"]]
    assert same(plan) == [
        ("float16", "float32", "float32 (forced on CPU)"),
        ("bfloat16", "float32", "float32 (bfloat16 not supported on CPU)"),
    ]


def test_a_gpu_measures_each_dtype():
    plan = make_plan(ALL, GPU)
    assert names(plan) == [["float32"], ["float16"], ["bfloat16"]]
    assert plan.same == ()


def test_a_cpu_beside_a_gpu_still_forces_float32():
    plan = make_plan([scenario_in("float32", "cpu"), scenario_in("float16", "cpu")], GPU)
    assert same(plan) == [("float16", "float32", "float32 (forced on CPU)")]


def test_the_first_of_two_equal_scenarios_is_measured():
    plan = make_plan(ALL[1:] + ALL[:1], CPU)
    assert names(plan) == [["float16"], ["bfloat16"]]
    assert same(plan) == [("float32", "float16", "float32")]


def test_different_work_of_one_dtype_is_measured():
    plan = make_plan([scenario_in("float32"), scenario_in("float16", max_new_tokens=6)], CPU)
    assert names(plan) == [["float32"], ["float16"]]
    assert plan.same == ()


def test_aliases_of_a_dtype_and_a_device_are_equal():
    plan = make_plan([scenario_in("float32", "cpu"), scenario_in("fp32", "auto")], CPU)
    assert same(plan) == [("fp32", "float32", "float32")]


def test_scenarios_of_one_variant_share_a_group():
    one, other = Variant(MODEL), Variant(MODEL, dtype="bfloat16")
    plan = make_plan([generating("a", one), generating("b", other), scoring("c", one)], CPU)
    assert names(plan) == [["a", "c"], ["b"]]


def test_names_must_be_unique():
    with pytest.raises(UsageError, match="names of their own: float32 is used twice"):
        make_plan([scenario_in("float32"), scenario_in("float32", max_new_tokens=6)], CPU)


def test_an_unknown_dtype_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        make_plan([scenario_in("float32"), scenario_in("int3")], CPU)
