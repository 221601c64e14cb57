"""What a runtime's own converter would make of a small model, made without it: those need an environment of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llmtrack.convert.build import Converter
from llmtrack.models.cache import build_once
from llmtrack.models.folder import ModelFolder
from llmtrack.onnx.session import MODEL_FILE
from llmtrack.scenario import digest


def genai_converted(converter: Converter, source: ModelFolder, arguments: Sequence[str], label: str) -> Path:
    """Return a folder that GenAI runs: our own export of the model, and the config that GenAI's builder would write."""
    from llmtrack.onnx.export import export

    def build(folder: Path) -> dict[str, str]:
        export(str(source.path), None, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "genai_config.json").write_text(json.dumps(_genai_config(config)), encoding="utf-8")
        return {}

    return build_once(f"genai-{digest([source.tags])}", build)


def _genai_config(config: dict[str, int]) -> dict[str, object]:
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids"}
    past = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    outputs = {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    }
    decoder = {
        "session_options": {"provider_options": []},
        "filename": MODEL_FILE,
        "head_size": config["hidden_size"] // config["num_attention_heads"],
        "hidden_size": config["hidden_size"],
        "num_attention_heads": config["num_attention_heads"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_key_value_heads": config["num_key_value_heads"],
        "inputs": {**inputs, **past},
        "outputs": outputs,
    }
    length = config["max_position_embeddings"]
    model = {
        "type": "llama",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "context_length": length,
        "vocab_size": config["vocab_size"],
        "decoder": decoder,
    }
    return {"model": model, "search": {"max_length": length, "past_present_share_buffer": False}}
