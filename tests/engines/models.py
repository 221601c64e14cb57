"""Small models: tables of bigrams with known answers, and named architectures of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import CausalLMOutput

from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.models import probe_cache, synthetic
from llmtrack.models.probe_cache import ProbeCache

T = TypeVar("T")

NO_PAD = synthetic.PRESETS["tiny-gpt2"]


class BigramConfig(PretrainedConfig):
    model_type = "bigram"

    def __init__(self, vocab_size: int = 8, **kwargs: Any) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = self.num_attention_heads = self.num_hidden_layers = 1
        self.max_position_embeddings = 512
        super().__init__(**kwargs)


class Bigram(PreTrainedModel, GenerationMixin):
    """The logits of the next token are the last token's row of a table."""

    config_class = BigramConfig

    def __init__(self, config: BigramConfig) -> None:
        super().__init__(config)
        self.table = torch.nn.Parameter(torch.zeros(config.vocab_size, config.vocab_size))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **unused: Any
    ) -> CausalLMOutput:
        return CausalLMOutput(logits=self.table[input_ids])


def bigram_engine(table: torch.Tensor, eos: int | list[int] | None = None) -> TorchEngine:
    """Return an engine of a table; its tokenizer has no pad token, so that `eos` pads."""
    model = Bigram(BigramConfig(vocab_size=len(table)))
    with torch.no_grad():
        model.table.copy_(table)
    model.generation_config.eos_token_id = eos
    tokenizer = synthetic.build_tokenizer(NO_PAD)
    if isinstance(eos, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    return TorchEngine(model.eval(), tokenizer, model_id="bigram")


def chain(*steps: tuple[int, int], size: int) -> torch.Tensor:
    """Return a table in which `b` follows `a`, for each (a, b)."""
    table = torch.zeros(size, size)
    for before, after in steps:
        table[before, after] = 10.0
    return table


class RememberedProbes(ProbeCache):
    """Probe answers of equal models, kept in this process: probing takes most of the time of making a small engine."""

    answers: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def answer(
        self,
        probe: str,
        model: Any,
        kind: type[T],
        run: Callable[[], T],
        is_final: Callable[[T], bool] = lambda _: True,
    ) -> T:
        if not probe_cache._is_known_code(model):
            return run()
        key = (
            probe,
            probe_cache._shape(model),
            *(float(weight.detach().double().sum()) for weight in model.parameters()),
        )
        if key not in self.answers:
            answer = run()
            if not is_final(answer):
                return answer
            self.answers[key] = answer
        return self.answers[key]


def byte_tokenizer() -> PreTrainedTokenizerBase:
    return synthetic.build_tokenizer(synthetic.PRESETS["tiny"])


SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


def random_model(architecture: str, seed: int = 0, **settings: Any) -> Any:
    """Return a model of a named architecture in float32; a setting of `...` leaves the architecture's default."""
    arguments = {name: value for name, value in {**SIZES, **settings}.items() if value is not ...}
    config = AutoConfig.for_model(architecture, **arguments)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 and "A_log" not in name:
                    parameter.normal_(0.0, 0.3)
    return model


def small(architecture: str, seed: int = 0, **settings: Any) -> TorchEngine:
    """Return an engine of a random model: width 8, two layers, two heads, one key head, 600 tokens."""
    sizes = {"vocab_size": 600, "hidden_size": 8, "intermediate_size": 16, "head_dim": 4}
    model = random_model(architecture, seed, **{**sizes, **settings})
    return TorchEngine(model, byte_tokenizer(), probe_cache=RememberedProbes())
