"""Known differences between two environments are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.selection import Pair
from llmtrack.report.tables.differences import _pair_differences
from tests.report.artificial_runs import make_runs, replace_values, run


def two(**facts):
    """Return runs of two environments; a fact is (then, now)."""
    runs = make_runs(
        *(run(name, environment_id=name, workload_id="w", tokens_per_sec=10.0) for name in ("then", "now"))
    )
    runs = replace_values(runs, **{f"env.{key}": list(values) for key, values in facts.items()})
    return Pair(runs[0], runs[1])


@pytest.mark.parametrize(
    ("facts", "difference"),
    [
        (
            {"version.transformers": ("4.57.6", "5.0.0"), "cpu": ("X", "X")},
            "version.transformers: 4.57.6 against 5.0.0",
        ),
        ({"threads": ("2", "4")}, "threads: 2 against 4"),
        ({"cpu_quota": (None, "1.5")}, "cpu_quota: not given against 1.5"),
        ({}, "environment_id: then against now"),
    ],
)
def test_compare_names_what_differs_between_environments(facts, difference):
    pair = two(**facts)
    assert f"another environment ({difference})" in _pair_differences(pair, columns=())
    assert difference in why_not_comparable(pair.baseline, pair.candidate, "tokens_per_sec")
    assert why_not_comparable(pair.baseline, pair.candidate, "tokens_per_sec", across_environments=True) == ""


def test_a_fact_known_on_one_side_only_is_named():
    pair = two()
    candidate = replace(pair.candidate, environment={**pair.candidate.environment, "node_kind": "cooled"})
    assert "node_kind: not given against cooled" in why_not_comparable(pair.baseline, candidate, "tokens_per_sec")


@pytest.mark.parametrize("metric", ["kl_divergence", "top1_agreement", "reference_perplexity_ratio"])
@pytest.mark.parametrize(
    "differing",
    [{"reference": "n torch/float32"}, {"reference_tokens": 9}, {"env.reference_weights_digest": "w2"}],
)
def test_figures_against_different_references_are_not_compared(metric, differing):
    facts = {"reference": "m torch/float32", "reference_tokens": 8, "env.reference_weights_digest": "w1"}
    one, other = make_runs(*({"model_id": "m", metric: 1.0, **facts, **more} for more in ({}, differing)))
    assert why_not_comparable(one, one, metric) == ""
    assert why_not_comparable(one, other, metric).startswith("compared with different references (reference")
    assert why_not_comparable(one, other, "perplexity") == ""
