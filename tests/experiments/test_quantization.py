"""The quantization experiment: its recipes and options, and its reading and plots for artificial runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import edge_prompts, quantization, suite
from experiments.quantization import BASELINE, Config, best_quantized, build, on_best
from experiments.suite import FOCUSES, chosen_names, experiments_of
from llmtrack.errors import UsageError
from llmtrack.spec.scenario import Scenario
from llmtrack.tracked.runs import Runs
from tests.experiments.installed import pretend
from tests.report.artificial_runs import interval, make_runs, run


def variant_of(experiment, name):
    return next(scenario.variant for scenario in experiment.scenarios if scenario.name == name)


def test_the_baseline_comes_first_and_is_the_reference_of_all():
    experiment = build(Config(recipes=("onnx/int8-weight-only", "torch/bfloat16")))
    assert [scenario.name for scenario in experiment.scenarios] == [
        "torch-float32", "onnx-int8-weight-only", "torch-bfloat16"
    ]  # fmt: skip
    assert [scenario.baseline for scenario in experiment.scenarios] == [True, False, False]
    base = variant_of(experiment, "torch-float32")
    assert {scenario.quality.reference for scenario in experiment.scenarios} == {base}
    assert variant_of(experiment, "torch-bfloat16").dtype == "bfloat16"
    assert len({scenario.task for scenario in experiment.scenarios}) == 1


def test_each_recipe_gets_its_own_options():
    labels = ("onnx/int8-static", "onnx/int8-weight-only", "onnx/float32", "torch/bfloat16")
    experiment = build(
        Config(recipes=labels, keep_quality="5%", block_size=64, calibration_method="entropy", threads=2)
    )
    assert dict(variant_of(experiment, "onnx-int8-static").options) == {
        "calibration": "pydoc", "calibration_method": "entropy", "keep_quality": "5%", "threads": 2
    }  # fmt: skip
    assert dict(variant_of(experiment, "onnx-int8-weight-only").options) == {
        "block_size": 64, "symmetric": True, "threads": 2
    }  # fmt: skip
    assert dict(variant_of(experiment, "onnx-float32").options) == {"threads": 2}
    assert dict(variant_of(experiment, "torch-bfloat16").options) == {"threads": 2}


def test_blocks_with_zero_points_can_be_requested():
    experiment = build(Config(recipes=("onnx/int4-weight-only",), symmetric=False))
    assert dict(variant_of(experiment, "onnx-int4-weight-only").options) == {"symmetric": False}


@pytest.mark.parametrize(("card", "there", "missing"), [
    (None, set(), {"torch/float16", "torch/int4-weight-only", "torch/float8-dynamic"}),
    ((8, 0), {"torch/float16", "torch/int8-weight-only@bfloat16", "torch/int4-weight-only"}, {"torch/float8-dynamic"}),
    ((9, 0), {"torch/int4-weight-only", "torch/float8-weight-only", "torch/float8-dynamic"}, set()),
])  # fmt: skip
def test_all_means_what_the_gpu_supports(monkeypatch, card, there, missing):
    pretend(monkeypatch, quantization, lambda backend, recipe: backend == "torch")
    monkeypatch.setattr(quantization, "capability", lambda: card)
    labels = set(quantization.everything())
    assert there <= labels
    assert not missing & labels
    assert "torch/float16" not in quantization.everything("cpu")


def test_unquantized_parts_have_a_separate_precision():
    experiment = build(Config(recipes=("torch/int8-weight-only@bf16", "torch/int4-weight-only", "torch/float16")))
    requested = {
        scenario.name: (scenario.variant.quantization, scenario.variant.dtype) for scenario in experiment.scenarios
    }
    assert requested == {
        "torch-float32": ("none", "float32"),
        "torch-int8-weight-only-bf16": ("int8-weight-only", "bfloat16"),
        "torch-int4-weight-only": ("int4-weight-only", "bfloat16"),
        "torch-float16": ("none", "float16"),
    }


@pytest.mark.parametrize("label", ["torch/bfloat16@float16", "torch/int8-weight-only@", "torch/@bfloat16"])
def test_a_precision_may_only_follow_a_recipe(label):
    with pytest.raises(UsageError, match="is not a recipe: write BACKEND/RECIPE"):
        build(Config(recipes=(label,)))


def test_all_means_what_can_run_here(monkeypatch):
    monkeypatch.setattr(quantization, "capability", lambda: None)
    pretend(monkeypatch, quantization, lambda backend, recipe: backend == "torch" and recipe == "none")
    assert quantization.everything() == (BASELINE, "torch/bfloat16")
    pretend(monkeypatch, quantization, lambda backend, recipe: True)
    found = quantization.everything()
    assert {
        "onnx/float32",
        "onnx/int8-dynamic",
        "onnx/int8-static",
        "onnx/int4-hqq",
        "torch/int8-dynamic",
    } <= set(found)


def test_a_quick_run_includes_only_available_recipes(monkeypatch):
    pretend(monkeypatch, quantization, lambda backend, recipe: True)
    assert quantization.quick(Config()).recipes == (
        BASELINE, "torch/bfloat16", "onnx/float32", "onnx/int8-weight-only", "onnx/int8-mixed"
    )  # fmt: skip
    pretend(monkeypatch, quantization, lambda backend, recipe: backend != "onnx")
    assert quantization.quick(Config()).recipes == (BASELINE, "torch/bfloat16", "torch/int8-weight-only")
    pretend(monkeypatch, quantization, lambda backend, recipe: recipe == "none")
    assert quantization.quick(Config()).recipes == (BASELINE, "torch/bfloat16", "onnx/float32")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("int8-dynamic", "is not a recipe: write BACKEND/RECIPE.*, such as onnx/int8-dynamic or torch/int8-dynamic$"),
        ("int3", "is not a recipe: write BACKEND/RECIPE.*, such as onnx/int8-weight-only or "),
        ("onnx/int3", "the onnx backend has no quantization 'int3': use none, "),
        (
            "moon/int8",
            r"the moon backend has no quantization 'int8' \(did you mean genai/int8 or openvino/int8\?\): use none$",
        ),
        ("torch/int8", r"\(did you mean torch/int8-weight-only or torch/int8-dynamic\?\): use none, "),
        ("torch/int8_dynamic", r"\(did you mean torch/int8-dynamic.*\?\): use none, "),
    ],
)
def test_an_unknown_recipe_is_refused(label, message):
    with pytest.raises(UsageError, match=message):
        build(Config(recipes=(label,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 17}, "block_size 17 is not possible: use 0, 16, 32, 64, 128 or 256"),
        ({"head_bits": 5}, "head_bits 5 is not possible: use 0, 4 or 8"),
        ({"recipes": ("onnx/int8-weight-only block_size=1",)}, "block_size 1 is not possible"),
    ],
)
def test_block_sizes_without_a_kernel_are_refused_first(options, message):
    with pytest.raises(UsageError, match=message):
        build(Config(**{"recipes": ("onnx/int4-weight-only",), **options}))


def test_block_size_0_means_the_recipes_default():
    asked = build(Config(recipes=("onnx/int4-weight-only",), block_size=0, head_bits=0))
    assert asked.scenarios == build(Config(recipes=("onnx/int4-weight-only",))).scenarios


def test_the_calibration_text_must_differ_from_the_evaluation_text():
    with pytest.raises(UsageError, match="the calibration text is the text that is scored"):
        build(Config(recipes=(BASELINE,), corpus="pydoc"))


def measured(name, prefill, decode, perplexity, **values):
    return run(
        name,
        experiment="quantization",
        study_id="q-1",
        perplexity=perplexity,
        corpus="builtin",
        **interval("prefill_tokens_per_sec", prefill, 0.98 * prefill, 1.02 * prefill),
        **interval("decode_tokens_per_sec", decode, 0.98 * decode, 1.02 * decode),
        **values,
    )


@pytest.fixture
def runs():
    return make_runs(
        measured("torch-float32", 350.0, 14.0, 20.0, baseline=True),
        measured("onnx-int8-weight-only", 420.0, 44.0, 20.1, quantization="int8-weight-only"),
        measured(
            "onnx-int8-mixed", 660.0, 43.0, 20.6, quantization="int8-mixed", linear_layers=211, left_out_layers=30,
            left_out_parameter_share=0.19,
        ),
        measured("onnx-int4-weight-only", 390.0, 52.0, 24.0, quantization="int4-weight-only"),
        run("onnx-int8-static", experiment="quantization", status="FAILED", failure="unsupported", reason="no"),
    )  # fmt: skip


def test_the_reading_names_a_recipe_for_each_use(runs):
    lines = quantization.reading(runs)
    assert (
        "For long answers at up to 1% more perplexity: onnx-int8-weight-only, 3.1x (3.0 to 3.3) the baseline's decode speed"
        in lines[1]
    )
    assert "For long prompts at up to 1% more perplexity: onnx-int8-weight-only, 1.20x" in lines[2]
    assert "For long prompts at up to 5% more perplexity: onnx-int8-mixed, 1.89x" in lines[3]
    assert "Do not use onnx-int4-weight-only: its perplexity is 1.20x the baseline's." in lines
    assert any(
        "onnx-int8-mixed left 30 of 211 layers out of 8-bit activations (19% of their weights)" in line
        for line in lines
    )
    assert any("1 of 5 scenarios failed: onnx-int8-static" in line for line in lines)


def test_the_reading_names_the_format_that_layers_are_excluded_from(runs):
    told = {"linear_layers": 210, "left_out_layers": 21, "left_out_parameter_share": 0.11, "weight_bits": 4}
    mixed = measured("onnx-int4-mixed", 380.0, 30.0, 20.9, quantization="int4-mixed", **told)
    lines = quantization.reading(Runs((*runs, *make_runs(mixed))))
    assert any("onnx-int8-mixed left 30 of 211 layers out of 8-bit activations (19%" in line for line in lines)
    assert any("onnx-int4-mixed left 21 of 210 layers out of 4-bit weights (11%" in line for line in lines)


def test_without_a_baseline_there_is_nothing_to_compare():
    lines = quantization.reading(
        make_runs(run("torch-float32", status="FAILED", baseline=True, failure="load", reason="gone"))
    )
    assert lines[0].startswith("The baseline was not measured")


@pytest.mark.slow(1)
def test_speed_is_plotted_against_perplexity(runs, tmp_path):
    figures = quantization.plots(runs, lambda run_id, name: [5.0, 20.0, 30.0])
    assert set(figures) == {"decode_against_perplexity", "prefill_against_perplexity", "layer_errors"}
    for figure in figures.values():
        figure.savefig(tmp_path / "x.png")
    names = [text.get_text() for text in figures["decode_against_perplexity"].axes[0].texts if text.get_text()]
    assert len(names) == 4


@pytest.mark.slow(1)
def test_labels_of_points_do_not_overlap():
    crowd = make_runs(
        *(measured(f"recipe-with-a-name-{n}", 100.0 + n / 10, 14.0 + n / 100, 20.0 + n / 1000) for n in range(6))
    )
    figure = quantization.plots(crowd, lambda run_id, name: [])["decode_against_perplexity"]
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert len(boxes) == 6
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[n + 1 :])


def test_the_best_quantized_variant_is_the_fastest_at_the_least_cost(runs):
    assert best_quantized(runs) == ["onnx-int8-weight-only"]
    assert best_quantized(runs.where(lambda run: run.scenario != "onnx-int8-weight-only")) == ["onnx-int8-mixed"]
    far = runs.where(lambda run: run.scenario in ("torch-float32", "onnx-int4-weight-only"))
    assert best_quantized(far) == ["onnx-int4-weight-only"]
    assert best_quantized(runs.where(lambda run: run.scenario == "torch-float32")) == []


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("decode", "n", "best"),
    [
        (44.5, 5, ["careful", "lucky"]),  # within noise: 43.6 to 45.4 against 43.1 to 44.9
        (90.0, 1, ["careful", "lucky"]),  # the luckiest figure of all, of one repeat
        (90.0, 5, ["lucky"]),
    ],
)
def test_an_insignificantly_faster_variant_is_not_the_best(decode, n, best):
    lucky = measured("lucky", 420.0, decode, 20.15, quantization="a")
    lucky |= interval("decode_tokens_per_sec", decode, 0.98 * decode, 1.02 * decode, n)
    runs = make_runs(
        measured("torch-float32", 350.0, 14.0, 20.0, baseline=True),
        measured("careful", 420.0, 44.0, 20.1, quantization="b"),
        lucky,
    )
    assert best_quantized(runs) == best
    planned = edge_prompts.build(edge_prompts.Config())
    variants = dict.fromkeys(("lucky", "careful"), planned.scenarios[0].variant)
    question = on_best(planned, variants, runs).question
    assert question.endswith("(on careful, which is not told from lucky in speed)" if len(best) > 1 else "(on lucky)")


def test_edge_prompts_follow_on_the_best_variant(runs, monkeypatch):
    pretend(monkeypatch, quantization, lambda backend, recipe: True)
    planned = experiments_of(FOCUSES["quantization"], suite.Config(focus="quantization"))
    edge = planned[-1]
    assert edge.name == "edge_prompts"
    moved = edge.follow(runs)
    assert {scenario.variant.quantization for scenario in moved.scenarios} == {"int8-weight-only"}
    assert [scenario.name for scenario in moved.scenarios] == [scenario.name for scenario in edge.scenarios]
    assert "(on onnx-int8-weight-only)" in moved.question
    assert all(each.follow is None for each in planned[:-1])


def test_without_a_quantized_run_they_stay_as_planned(runs):
    experiment = edge_prompts.build(edge_prompts.Config())
    same = on_best(experiment, {}, runs.where(lambda run: run.scenario == "torch-float32"))
    assert same is experiment


def test_a_focus_chooses_its_experiments():
    assert chosen_names(suite.Config(focus="quantization")) == FOCUSES["quantization"]
    assert "quantization" in chosen_names(suite.Config())
    assert "quantization" not in chosen_names(suite.Config(quick=True))
    named = suite.Config(experiments=("quantization",), quick=True)
    assert chosen_names(named) == ("quantization",)
    with pytest.raises(UsageError, match="either experiments or a focus"):
        chosen_names(suite.Config(experiments=("baseline",), focus="quantization"))


def test_a_quality_check_is_part_of_the_scenarios_id():
    scenario = build(Config(recipes=(BASELINE,))).scenarios[0]
    assert isinstance(scenario, Scenario)
    assert replace(scenario, quality=None).scenario_id != scenario.scenario_id
    assert replace(scenario, name="other").scenario_id == scenario.scenario_id
