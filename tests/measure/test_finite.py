"""A model that computes no numbers is found before it is timed, whatever the engine; one that is only odd is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from llmtrack.engine import GenerateRequest
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.measure.finite import not_finite
from llmtrack.measure.timing import Arm, time_arms
from llmtrack.quality.drift import compare_distributions
from llmtrack.spec.task import RepeatPolicy
from tests.engines.models import bigram_engine, chain

A, B = ord("a"), ord("b")


def timed(engine, prompts, warmup=1, repeats=2, **settings):
    policy = RepeatPolicy(warmup=warmup, min_repeats=repeats, min_seconds=0, max_repeats=repeats)
    request = GenerateRequest(prompts, 4, **settings)
    ((_, result),) = time_arms(engine, {"": Arm((request,), policy)})
    return result


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_that_are_not_finite_end_an_arm(warmup, value, side):
    table = torch.zeros(300, 300)
    table[B] = value
    result = timed(bigram_engine(table), ((A,), (A, B)), warmup, padding_side=side)
    assert isinstance(result, ScenarioError)
    assert result.kind == "non_finite"
    assert "1 of 2 rows (from 0: 1) are not finite in float32: look for damaged weights" in str(result)


@pytest.mark.parametrize(
    ("label", "remedy"),
    [
        ("float16", "use dtype=float32 or bfloat16, or look for damaged weights"),
        (
            "mixed (float16 98.4 %, float32 1.6 %)",
            "use dtype=float32 or bfloat16, or look for damaged weights",
        ),
        ("bfloat16", "look for damaged weights"),
        ("float32 (forced on CPU)", "look for damaged weights"),
    ],
)
def test_another_dtype_is_advised_only_where_its_range_is_what_may_be_left(label, remedy):
    engine = ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    engine._info = replace(engine.info, dtype_label=label)
    assert str(not_finite("the loss is", engine)) == f"the loss is not finite in {label}: {remedy}"


def test_what_only_the_output_runs_into_is_found_too():
    table = chain((A, B), size=300)
    table[B] = math.nan
    assert isinstance(timed(bigram_engine(table), ((A,),)), ScenarioError)
    # The last token of an output is nobody's context.
    assert not isinstance(timed(bigram_engine(chain((A, B), size=300)), ((A,),)), Exception)


def test_what_only_the_prompt_runs_into_is_found_too():
    table = torch.zeros(300, 300)
    table[A] = math.nan
    result = timed(bigram_engine(table), ((A, B),))
    assert "the logits of the prompt are not finite" in str(result)


@pytest.mark.parametrize(
    "table",
    [
        torch.zeros(300, 300),
        torch.full((300, 300), -1e30),
        torch.zeros(300, 300).index_fill_(1, torch.arange(200, 300), -math.inf),
    ],
    ids=["constant", "very low", "masked entries of the vocabulary"],
)
def test_odd_logits_are_no_fault(table):
    assert not isinstance(timed(bigram_engine(table), ((A,), (A, B))), Exception)


def test_one_arm_fails_and_the_others_go_on():
    table = torch.zeros(300, 300)
    table[B] = math.nan
    policy = RepeatPolicy(warmup=1, min_repeats=1, min_seconds=0, max_repeats=1)
    arms = {name: Arm((GenerateRequest(((token,),), 2),), policy) for name, token in (("bad", B), ("good", A))}
    results = dict(time_arms(bigram_engine(table), arms))
    assert isinstance(results["bad"], ScenarioError)
    assert results["good"]["tokens_generated"] == 2


class Plugin(ScriptedEngine):
    """An engine of another package: its logits are whatever it says."""

    def __init__(self, value: float | None) -> None:
        super().__init__(FakeClock(), Script(0.1, 0.1))
        self.value = value

    def next_token_logits(self, ids):
        if self.value is None:
            raise NotImplementedError("a server does not tell")
        return super().next_token_logits(ids) + self.value


def test_an_engine_of_another_package_is_looked_at_in_the_same_place():
    assert not isinstance(timed(Plugin(0.0), ((A,),)), Exception)
    assert timed(Plugin(math.nan), ((A,),)).kind == "non_finite"


def test_an_engine_that_shows_no_logits_is_timed_and_that_is_said():
    result = timed(Plugin(None), ((A,),))
    assert any("does not expose them" in warning for warning in result.warnings)


def test_looking_takes_no_time_that_counts():
    engine = ScriptedEngine(FakeClock(), Script(0.1, 0.1))
    policy = RepeatPolicy(warmup=1, min_repeats=2, min_seconds=0, max_repeats=2)
    ((_, result),) = time_arms(engine, {"": Arm((GenerateRequest(((A,),), 4),), policy)}, engine.clock)
    assert engine.calls == 3
    assert result["total_latency_s"] == pytest.approx(0.4)


def test_drift_from_or_of_what_is_not_finite_is_refused():
    good, bad = ScriptedEngine(FakeClock(), Script(0.1, 0.1)), Plugin(math.nan)
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(ScenarioError, match="not finite") as caught:
            compare_distributions(*pair, ["abc"])
        assert caught.value.kind == "non_finite"


def test_a_vocabulary_masked_in_both_has_a_finite_drift():
    masked = bigram_engine(torch.zeros(300, 300).index_fill_(1, torch.arange(200, 300), -math.inf))
    drift = compare_distributions(masked, masked, ["ab"])
    assert (drift.kl_divergence, drift.perplexity_ratio) == (0.0, 1.0)
