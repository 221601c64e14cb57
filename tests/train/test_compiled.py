"""Compiled training steps: compiling has no side effects, and its errors are readable."""

from __future__ import annotations

import pytest
import torch

from llmtrack.errors import UsageError
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import TrainTask
from llmtrack.train.flops import counted_flops_per_token
from llmtrack.train.loop import batch_nll, compiled_nll
from llmtrack.train.session import open_session


@pytest.fixture
def session(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"The {word} is one of many words." for word in "abcdefghijklmnop"))
    variant = Variant("synthetic:tiny", device="cpu", options=(("compile", "default"), ("threads", 1)))
    return open_session(
        variant,
        TrainTask(str(corpus), batch_size=2, sequence_length=16, steps=2, output=str(tmp_path / "out")),
    )


def test_the_option_compiles_training_steps_and_not_decoding(session):
    assert (session.compile, session.facts["compile"]) == ("default", "default")
    assert session.engine.info.facts["decode_step"] == "eager"
    assert compiled_nll("none") is batch_nll


def test_preparing_preserves_weights_gradients_and_random_state(session):
    before = [weight.clone() for weight in session.engine.model.parameters()]
    state = torch.get_rng_state()
    assert session.prepare(batch_nll) > 0
    assert torch.equal(torch.get_rng_state(), state)
    for weight, then in zip(session.engine.model.parameters(), before, strict=True):
        assert weight.grad is None
        assert torch.equal(weight, then)


def test_a_compiler_error_is_reported_in_one_line(session):
    def fails(*inputs):
        raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

    with pytest.raises(UsageError, match=r"no C\+\+ compiler\): use compile=none"):
        session.prepare(fails)


@pytest.mark.slow(1)
def test_estimated_and_counted_flops_agree(session):
    formula, counted = session.flops_per_token(), session.counted_flops_per_token()
    assert counted == pytest.approx(formula, rel=0.05)
    assert all(weight.grad is None for weight in session.engine.model.parameters())
    assert counted_flops_per_token(session.engine.model, 8) < counted
