"""Non-finite logits fail with a kind of their own, timed or scored."""

from __future__ import annotations

import math

import pytest
import torch

from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import ScenarioError
from llmtrack.models import synthetic
from llmtrack.models.load import LoadedModel
from llmtrack.spec.outcome import Failure
from llmtrack.spec.scenario import QualityCheck, Scenario
from llmtrack.spec.task import PerplexityTask, RepeatPolicy
from llmtrack.worker.measuring import EngineCache, measure_group
from tests.engines.models import bigram_engine, chain
from tests.run.scenarios import MODEL, generating, outcomes, scoring

pytestmark = pytest.mark.usefixtures("_known_ceilings")


def broken(change) -> TorchEngine:
    """Return a small Llama with a tensor changed by `change`."""
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    with torch.no_grad():
        change(model)
    return TorchEngine(model, tokenizer)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model: model.model.layers[2].mlp.down_proj.weight.fill_(math.nan),
        lambda model: model.model.layers[0].self_attn.v_proj.weight[0].fill_(math.inf),
        lambda model: model.model.norm.weight[3].fill_(math.nan),
        lambda model: model.model.layers[1].mlp.up_proj.weight.fill_(1e38),
    ],
    ids=["layer", "row of a matrix", "one scale", "overflow"],
)
def test_non_finite_weights_fail_timed_and_scored_runs(spoil):
    events = []
    engines = EngineCache(lambda variant: broken(spoil))
    measure_group([generating("timed"), scoring("scored", max_length=16)], engines, events.append)
    assert [(type(outcome), outcome.kind) for outcome in outcomes(events)] == [(Failure, "non_finite")] * 2


def test_exporting_a_non_finite_model_is_refused():
    """The parity check reads the model's own logits first, so rounding or quantization is not blamed."""
    parity = pytest.importorskip("llmtrack.onnx.export", reason="needs the onnx extra").parity
    engine = broken(lambda model: model.model.norm.weight.fill_(math.nan))
    loaded = LoadedModel(engine.model, engine.tokenizer, "spoiled", None, "none:")
    with pytest.raises(ScenarioError, match="the logits of spoiled are not finite") as caught:
        parity(loaded, None)
    assert caught.value.kind == "non_finite"


def test_a_non_finite_loss_beside_a_timing_is_a_failure():
    """The prompt does not touch the token whose row is changed; the corpus does."""
    table = chain((ord("a"), ord("a")), size=512)
    table[ord("e")] = math.nan
    check = QualityCheck(PerplexityTask(corpus="builtin", max_length=16))
    scenario = Scenario("one", MODEL, generating("one", prompts=("aa",)).task, RepeatPolicy(1, 1, 0, 1), quality=check)
    events = []
    measure_group([scenario], EngineCache(lambda variant: bigram_engine(table)), events.append)
    (outcome,) = outcomes(events)
    assert isinstance(outcome, Failure)
    assert outcome.kind == "non_finite"
