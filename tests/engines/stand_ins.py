"""Replacements for the runtimes' converters, which need separate environments: small converted models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmtrack.convert.conversion import Converter
from llmtrack.models.cache import build_once
from llmtrack.models.folder import ModelFolder
from llmtrack.onnx.session import MODEL_FILE
from llmtrack.spec.serialization import digest

NO_LLAMACPP = "neither llama-cpp-python is installed, which takes ten minutes to compile, nor llama-cpp-py-sync, which needs glibc 2.38"


def genai_converted(
    converter: Converter, source: ModelFolder, arguments: Sequence[str], label: str, bits: int, check: object
) -> Path:
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
    outputs = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
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


def openvino_converted(
    converter: Converter, source: ModelFolder, arguments: Sequence[str], label: str, bits: int, check: object
) -> Path:
    """Return a folder that OpenVINO runs: Optimum's ONNX export of the model, with its KV cache made a state."""

    def build(folder: Path) -> dict[str, str]:
        import openvino
        import torch

        from llmtrack.models.load import load_model
        from llmtrack.onnx import export as exporting

        loaded = load_model(str(source.path), device="cpu", dtype=torch.float32)
        exporting._trace(loaded, folder)
        loaded.tokenizer.save_pretrained(str(folder))
        graph = openvino.Core().read_model(str(folder / MODEL_FILE))
        _keep_cache(graph)
        openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
        return {}

    return build_once(f"openvino-{digest([source.tags])}", build)


def _keep_cache(graph: Any) -> None:
    """Turn the inputs and outputs of a KV cache into a state that begins empty, with as many rows as there are ids."""
    import numpy as np
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    (ids,) = (node for node in graph.inputs if node.get_any_name() == "input_ids")
    zero = ops.constant(np.array([0], dtype=np.int64))
    rows = ops.gather(ops.shape_of(ids), zero, ops.constant(np.array(0, dtype=np.int64)))
    past = [node for node in graph.inputs if node.get_any_name().startswith("past_key_values")]
    names = {node.get_any_name(): node.get_any_name().replace("past_key_values", "present") for node in past}
    shapes = {node.get_any_name(): node.get_partial_shape() for node in past}
    apply_make_stateful_transformation(graph, names)
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = next(shapes[name] for name in shapes if node.get_variable_id().startswith(name))
            heads, width = (ops.constant(np.array([shape[axis].get_length()], dtype=np.int64)) for axis in (1, 3))
            empty = ops.concat([rows, heads, zero, width], axis=0)
            node.set_arguments([ops.broadcast(ops.constant(np.float32(0)), empty)])
    graph.validate_nodes_and_infer_types()


def gguf_converted(source: ModelFolder, quantization: str) -> Path:
    """Return a GGUF file in float32 that llama.cpp runs: the weights of a Llama or GPT-2 by their names there."""
    assert quantization == "none"

    def build(folder: Path) -> dict[str, str]:
        _write_gguf(source.path, folder / "model.gguf")
        return {}

    return build_once(f"gguf-{digest([source.tags])}", build) / "model.gguf"


def _write_gguf(source: Path, target: Path) -> None:
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    llama = config["model_type"] == "llama"
    layers, width, heads = (
        config[long if llama else short]
        for long, short in (
            ("num_hidden_layers", "n_layer"),
            ("hidden_size", "n_embd"),
            ("num_attention_heads", "n_head"),
        )
    )
    writer = GGUFWriter(str(target), config["model_type"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings" if llama else "n_positions"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config["intermediate_size"] if llama else 4 * width)
    writer.add_head_count(heads)
    writer.add_file_type(0)
    if llama:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    else:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    names = get_tensor_name_map(MODEL_ARCH.LLAMA if llama else MODEL_ARCH.GPT2, layers)
    for name, weights in load_file(source / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp turns neighbouring pairs of a head, transformers its halves.
            count = heads if "q_proj" in name else config["num_key_value_heads"]
            halves = weights.reshape(count, 2, -1, width)
            weights = halves.swapaxes(1, 2).reshape(weights.shape)
        elif not llama and weights.ndim == 2 and ".h." in name:
            weights = weights.T  # GPT-2's layers multiply from the other side
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), weights.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
