"""The search space follows from what is installed, its declared options, and the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from llmtrack.engine import Backend
from llmtrack.engines import registry
from llmtrack.engines.options import ThreadOption
from llmtrack.errors import UsageError
from llmtrack.quantize.recipe import Recipe, recipes
from llmtrack.run.tune import search_space
from llmtrack.run.tune.search_space import make_space, parse_space, rows_of_work
from llmtrack.spec.options import Option, parameters
from llmtrack.spec.parameter import format_value
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import GenerateTask

MACHINE = {"devices": "cpu", "bfloat16": "cpu", "threads": "4"}
TASK = GenerateTask(("a",) * 4, max_new_tokens=32)


def tried(objective="decode_tokens_per_sec", narrowed="", machine=MACHINE, task=TASK):
    return make_space(Variant(), task, objective, machine, parse_space(narrowed))


def names(space):
    return [candidate.name for candidate in space.candidates]


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch):
    monkeypatch.setattr(search_space, "missing_modules", lambda backend, recipe="none": [])
    monkeypatch.setattr(Recipe, "lacking", [])


@dataclass(frozen=True)
class _Options(ThreadOption):
    turbo: Annotated[bool, Option("Go faster.", tries=lambda cpus: (True,))] = False
    depth: Annotated[int, Option("Nobody tries others.")] = 1


def test_candidates_are_ordered_by_their_changes_to_the_baseline():
    result = tried()
    assert names(result)[0] == "torch-float32"
    assert [candidate.changes for candidate in result.candidates] == sorted(
        candidate.changes for candidate in result.candidates
    )
    assert len(set(names(result))) == len(names(result))


def test_each_recipe_is_tried_with_each_number_of_threads():
    result = names(tried())
    for recipe in (recipe for recipe in recipes() if recipe.capability is None):
        for threads in ("", "-threads_2", "-threads_1"):
            assert f"{recipe.backend}-{recipe.name}{threads}" in result


def test_a_plugin_backend_is_tried_with_its_declared_options(monkeypatch):
    backend = Backend(lambda variant: None, _Options, ("float32", "bfloat16"))  # type: ignore[arg-type]
    monkeypatch.setattr(search_space, "backends", lambda: ["fast", "torch"])
    monkeypatch.setattr(registry, "_point", lambda name: None)
    monkeypatch.setattr(registry, "extension_backend", lambda point: backend)
    result = names(tried(narrowed="backend=fast threads=0,3"))
    assert sorted(result[1:]) == sorted(
        f"fast-{dtype}{turbo}{threads}"
        for dtype in ("float32", "bfloat16")
        for turbo in ("", "-turbo_true")
        for threads in ("", "-threads_3")
    )
    # One that changes more comes after those that change less.
    assert result.index("fast-float32-turbo_true-threads_3") > result.index("fast-bfloat16")


def test_candidates_that_cannot_run_are_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(
        search_space, "missing_modules", lambda backend, recipe="none": ["onnx"] if backend == "onnx" else []
    )
    result = tried(machine={"devices": "cpu", "bfloat16": "", "threads": "1"})
    left_out = dict(result.left_out)
    assert left_out["onnx"] == "onnx is not installed"
    assert "not supported on CPU" in left_out["torch/bfloat16"]
    assert "forced on CPU" in left_out["torch/float16"]
    assert not any(name.startswith("onnx") for name in names(result))
    assert not any("threads" in name for name in names(result))


@pytest.mark.parametrize("objective", ["tokens_per_sec", "latency_per_sample_s"])
def test_batches_are_tried_for_objectives_that_gain_by_them(objective):
    result = tried(objective, "backend=torch threads=0 precision=float32")
    assert names(result) == ["torch-float32", "torch-float32-batch_2", "torch-float32-batch_4"]
    assert [candidate.task.batch_size for candidate in result.candidates] == [1, 2, 4]


@pytest.mark.parametrize("option", ["block_size", "symmetric", "calibration"])
def test_recipe_options_are_tried_if_the_space_names_them(option):
    requested = {"block_size": "64,256", "symmetric": "true,false", "calibration": "builtin,pydoc"}[option]
    result = tried(narrowed=f"backend=onnx recipe=* threads=0 {option}={requested}").candidates
    for recipe in (recipe for recipe in recipes() if recipe.backend == "onnx"):
        defaults = {
            parameter.name: parameter.default for config in recipe.option_types for parameter in parameters(config)
        }
        own = [candidate for candidate in result if candidate.variant.quantization == recipe.name]
        values = [dict(candidate.variant.options).get(option, defaults.get(option)) for candidate in own]
        # One that takes no such option is tried as it is.
        assert sorted(map(format_value, values)) == (sorted(requested.split(",")) if option in defaults else ["none"])
    assert len({candidate.name for candidate in result}) == len(result)


def test_speed_options_are_not_tried_for_the_model_size():
    result = names(tried("model_size_mib"))
    assert {f"onnx-{recipe.name}" for recipe in recipes() if recipe.backend == "onnx"} <= set(result)
    assert not any("threads" in name or "batch" in name or "no_cache" in name for name in result)


@pytest.mark.parametrize(
    ("objective", "narrowed", "rows"),
    [
        ("tokens_per_sec", "", 4),
        ("decode_tokens_per_sec", "", 1),
        ("decode_tokens_per_sec", "batch_size=1,16", 16),
        ("tokens_per_sec", "batch_size=1", 1),
    ],
)
def test_there_are_enough_prompts_for_the_largest_batch(objective, narrowed, rows):
    assert rows_of_work(objective, parse_space(narrowed)) == rows


def test_no_cache_is_tried_for_few_new_tokens_only():
    few = GenerateTask(("a",), max_new_tokens=4)
    assert "torch-float32-no_cache" in names(tried("time_to_first_token_ms", task=few))
    assert not any("no_cache" in name for name in names(tried("time_to_first_token_ms")))


def test_threads_are_not_tried_on_a_gpu():
    result = tried(machine={**MACHINE, "devices": "cpu,cuda:0", "bfloat16": "cpu,cuda"})
    assert not any("threads" in name for name in names(result))
    assert "torch-float16" in names(result)


def test_common_options_are_neither_varied_nor_named():
    narrowed = {"backend": ("torch",), "precision": ("float32", "bfloat16")}
    task = GenerateTask(("text",), prompt_tokens=8)
    result = make_space(Variant(options=(("threads", 1),)), task, "decode_tokens_per_sec", MACHINE, narrowed).candidates
    assert [candidate.name for candidate in result] == ["torch-float32", "torch-bfloat16"]
    assert {candidate.variant.options for candidate in result} == {(("threads", 1),)}


def test_a_space_is_narrowed_by_patterns_and_the_baseline_stays():
    assert names(tried(narrowed="backend=onnx; recipe=int8*,none threads=2")) == [
        "torch-float32",
        *(
            f"onnx-{name}-threads_2"
            for name in ("float32", "int8-weight-only", "int8-dynamic", "int8-per-token", "int8-static", "int8-mixed")
        ),
    ]


@pytest.mark.parametrize(
    ("narrowed", "why"),
    [
        ("colour=red", "space has no colour: use backend, precision, recipe, batch_size"),
        ("backend", "invalid space 'backend'"),
        ("backend=nowhere", "space backend=nowhere is nothing that can run here: use .*onnx"),
        ("backend=onnx precision=int8-dynamic", "precision=int8-dynamic .*: use recipe=int8-dynamic"),
        ("recipe=int8-dynamic,int8-dynamix", "recipe=int8-dynamix is nothing that can run here: use .*int8-dynamic"),
        ("backend=torch precision=float32 threads=0", "nothing but the baseline is left"),
        ("batch_size=two", "space batch_size=two is not possible"),
        ("threads=many", "threads 'many' is not a whole number"),
        ("threads=1 threads=2", "space threads is given twice: write threads=VALUE,VALUE"),
        ("use_cache=maybe", "space use_cache 'maybe' is not true or false"),
        ("backend=onnx recipe=int8-dynamic block_size=32", "block_size would change nothing"),
        ("backend=torch provider=auto", "provider would change nothing"),
    ],
)
def test_an_invalid_space_is_refused_in_one_line(narrowed, why):
    with pytest.raises(UsageError, match=why):
        tried(narrowed=narrowed)
