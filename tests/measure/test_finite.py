"""NaN and infinite logits end a timing, whatever the engine."""

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
def test_non_finite_logits_end_an_arm(warmup, value, side):
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
        ("mixed (float16 98.4 %, float32 1.6 %)", "use dtype=float32 or bfloat16, or look for damaged weights"),
        ("bfloat16", "look for damaged weights"),
        ("float32 (forced on CPU)", "look for damaged weights"),
    ],
)
def test_another_dtype_is_advised_only_for_float16(label, remedy):
    engine = ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    engine._info = replace(engine.info, dtype_label=label)
    assert str(not_finite("the loss is", engine)) == f"the loss is not finite in {label}: {remedy}"


def test_non_finite_logits_of_the_output_are_detected():
    table = chain((A, B), size=300)
    table[B] = math.nan
    assert isinstance(timed(bigram_engine(table), ((A,),)), ScenarioError)
    # The last token of an output is not context for any other.
    assert not isinstance(timed(bigram_engine(chain((A, B), size=300)), ((A,),)), Exception)


def test_non_finite_logits_of_the_prompt_are_detected():
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
def test_odd_but_sound_logits_are_accepted(table):
    assert not isinstance(timed(bigram_engine(table), ((A,), (A, B))), Exception)


def test_a_non_finite_arm_does_not_affect_others():
    table = torch.zeros(300, 300)
    table[B] = math.nan
    policy = RepeatPolicy(warmup=1, min_repeats=1, min_seconds=0, max_repeats=1)
    arms = {name: Arm((GenerateRequest(((token,),), 2),), policy) for name, token in (("bad", B), ("good", A))}
    results = dict(time_arms(bigram_engine(table), arms))
    assert isinstance(results["bad"], ScenarioError)
    assert results["good"]["tokens_generated"] == 2


class Plugin(ScriptedEngine):
    """An engine of another package that shifts its logits; None: it exposes none."""

    def __init__(self, value: float | None) -> None:
        super().__init__(FakeClock(), Script(0.1, 0.1))
        self.value = value

    def next_token_logits(self, ids):
        if self.value is None:
            raise NotImplementedError("a server does not tell")
        return super().next_token_logits(ids) + self.value


def test_engines_of_other_packages_are_checked():
    assert not isinstance(timed(Plugin(0.0), ((A,),)), Exception)
    assert timed(Plugin(math.nan), ((A,),)).kind == "non_finite"


def test_an_engine_without_logits_is_timed_with_a_warning():
    result = timed(Plugin(None), ((A,),))
    assert any("does not expose them" in warning for warning in result.warnings)


def test_the_check_is_not_timed():
    engine = ScriptedEngine(FakeClock(), Script(0.1, 0.1))
    policy = RepeatPolicy(warmup=1, min_repeats=2, min_seconds=0, max_repeats=2)
    ((_, result),) = time_arms(engine, {"": Arm((GenerateRequest(((A,),), 4),), policy)}, engine.clock)
    assert engine.calls == 3
    assert result["total_latency_s"] == pytest.approx(0.4)


def test_drift_of_non_finite_logits_is_rejected():
    good, bad = ScriptedEngine(FakeClock(), Script(0.1, 0.1)), Plugin(math.nan)
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(ScenarioError, match="not finite") as caught:
            compare_distributions(*pair, ["abc"])
        assert caught.value.kind == "non_finite"


def test_drift_of_equally_masked_vocabularies_is_finite():
    masked = bigram_engine(torch.zeros(300, 300).index_fill_(1, torch.arange(200, 300), -math.inf))
    drift = compare_distributions(masked, masked, ["ab"])
    assert (drift.kl_divergence, drift.perplexity_ratio) == (0.0, 1.0)
