"""Write a tiny GGUF file with a tokenizer."""

from __future__ import annotations

import numpy as np

from llmtrack.models.bytelevel import byte_symbols

WIDTH, INNER, LAYERS, HEADS = 64, 128, 2, 2
SPECIALS = ["<|begin|>", "<|end|>", "<|pad|>", "<tool>"]
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "Ġ x"]
VOCABULARY = [*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]
BEGIN, END, PAD, TOOL = range(len(VOCABULARY) - 4, len(VOCABULARY))


def write_gguf(path, pre="smollm", **metadata):
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([1] * (len(VOCABULARY) - 4) + [3, 3, 3, 4])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)
    for key, value in metadata.items():
        getattr(writer, key)(value)
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(VOCABULARY), WIDTH),
        "output": (len(VOCABULARY), WIDTH),
        "output_norm": (WIDTH,),
    }
    for layer in range(LAYERS):
        for name, shape in {
            **{f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
        }.items():
            shapes[f"blk.{layer}.{name}"] = shape
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
