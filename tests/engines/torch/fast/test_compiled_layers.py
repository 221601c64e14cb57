"""Compiled layers give the same scores, and are used for scoring only; a stub compiler saves compile time."""

from __future__ import annotations

import pytest
import torch

from llmtrack.engines.torch.fast.compiled_layers import CompiledLayers, repeated_layers
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import ScenarioError
from llmtrack.quality.perplexity import score_documents
from tests.engines.models import small

TEXTS = ("The harbour is quiet.", "Boats come in with the tide.", "x y")


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox", "mixtral", "qwen3"])
def test_layers_are_found_by_structure(architecture):
    model = small(architecture).model
    layers = repeated_layers(model.base_model)
    assert len(layers) == model.config.num_hidden_layers
    assert len({type(layer) for layer in layers}) == 1
    assert "Expert" not in type(layers[0]).__name__, "experts are inside a layer, and may be more"


def test_a_body_without_repeated_layers():
    assert repeated_layers(torch.nn.Sequential(torch.nn.Linear(2, 2))) == []
    assert repeated_layers(torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU()])) == []


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_only_scoring_uses_compiled_layers(architecture):
    plain = small(architecture)
    calls = []

    def compiler(run):
        def compiled(*args, **kwargs):
            calls.append(run.__name__)
            return run(*args, **kwargs)

        return compiled

    expected = score_documents(plain, TEXTS, max_length=32)
    engine = TorchEngine(plain.model, plain.tokenizer, compile="default", compiler=compiler)
    before = calls.count("forward")
    engine.next_token_logits([1, 2, 3])
    assert calls.count("forward") == before
    assert score_documents(engine, TEXTS, max_length=32) == expected
    assert calls.count("forward") == before + engine.model.config.num_hidden_layers
    assert not any("forward" in vars(module) for module in engine.model.modules())


def test_without_the_option_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(CompiledLayers, "used", lambda layers: pytest.fail("compiled"))
    score_documents(small("llama"), TEXTS, max_length=32)


def test_a_failing_compiler_is_reported_with_the_remedy():
    def compiler(run):
        def compiled(*args, **kwargs):
            raise torch._dynamo.exc.TorchDynamoException("no C++ compiler")

        return compiled

    model = small("llama").model
    with (
        pytest.raises(ScenarioError, match=r"no C\+\+ compiler\): use compile=none"),
        CompiledLayers(model, compiler).used(),
    ):
        model(torch.tensor([[1, 2]]))
    assert not any("forward" in vars(module) for module in model.modules())
