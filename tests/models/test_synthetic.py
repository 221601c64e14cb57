import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from llmtrack.host.transformers_compat import no_init_weights
from llmtrack.models import synthetic

SHAPES = {"smollm2-135m": 134515008, "gpt2-124m": 124439808, "qwen2-0.5b": 494032768}
SHAPES |= {"llama-1b": 1235814400, "llama-8b": 8030261248}


@pytest.fixture(scope="module")
def tiny():
    return synthetic.build("tiny", device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return tiny[1]


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", SHAPES)
def test_presets_have_the_published_parameter_counts(name):
    from transformers import AutoModelForCausalLM

    preset = synthetic.PRESETS[name]
    with torch.device("meta"), no_init_weights():  # which would draw nothing, for seconds
        config = synthetic.config_of(preset, synthetic.build_tokenizer(preset))
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert sum(parameter.numel() for parameter in model.parameters()) == SHAPES[name]


def test_the_tiny_model_has_a_million_parameters_in_eval_mode(tiny):
    model, _ = tiny
    assert 0.9e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.1e6
    assert not model.training
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_weights_depend_on_the_seed_only_and_do_not_change_the_global_state(tiny):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    equal, _ = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    other, _ = synthetic.build("tiny", device="cpu", dtype=torch.float32, seed=1)
    half, _ = synthetic.build("tiny", device="cpu", dtype=torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    for name, weight in tiny[0].state_dict().items():
        assert torch.equal(weight, equal.state_dict()[name])
        assert torch.equal(weight.bfloat16(), half.state_dict()[name])
    assert not torch.equal(tiny[0].lm_head.weight, other.lm_head.weight)
    assert synthetic.digests("tiny", 0, "cpu") != synthetic.digests("tiny", 1, "cpu")


def test_the_next_token_depends_on_the_context(tiny):
    model, tokenizer = tiny
    with torch.inference_mode():
        ends = [
            model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].argmax().item()
            for text in ("one x", "two x", "three x", "something else x")
        ]
    assert len(set(ends)) > 1


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips_byte_by_byte(tokenizer, text):
    # Hypothesis also tries texts of the code, such as the name of a special token, which is that token.
    assume(not any(name in text for name in tokenizer.all_special_tokens))
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())  # the vocabulary is in byte order
    assert tokenizer.decode(ids) == text


def test_every_id_decodes_and_specials_are_dropped(tokenizer):
    assert len(tokenizer) == synthetic.PRESETS["tiny"].vocab
    for number in range(len(tokenizer)):
        assert isinstance(tokenizer.decode([number]), str)
    assert tokenizer.decode([72, tokenizer.eos_token_id, 105], skip_special_tokens=True) == "Hi"
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}


def test_gpt2_has_no_pad_token_but_learned_positions():
    model, tokenizer = synthetic.build("tiny-gpt2", device="cpu", dtype=torch.float32)
    assert tokenizer.pad_token is None
    assert tokenizer.bos_token == tokenizer.eos_token
    assert model.config.n_positions == 512
    assert sorted(set(type(model).__name__.split("LM"))) == ["GPT2", "HeadModel"]
