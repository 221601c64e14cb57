"""The params: the one place for each condition of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmtrack.metrics.entry import Param, Shown

_work = partial(Param, role="work")
_convention = partial(Param, role="convention")
_repeats = partial(Param, role="repeats")
_found = partial(Param, role="found")
_implied = partial(Param, role="implied")


def _multiple(value: Any) -> str:
    return "longest" if value == 1 else f"x{value}"


PARAMS: tuple[Param, ...] = (
    _implied("scenario", str, "name of the scenario, unique within its study"),
    _found("tuned_for", str, "of `tune`: the metric to be best in"),
    _found(
        "race_place",
        str,
        "of `tune`: `winner` (proven), `unproven` (the best so far), `proven` (but another measured better), `equal` (no "
        "significant difference to it), `dropped`, `not tried` (given up for want of time), or `open`",
        shown=Shown("place", place=5, keep=93),
    ),
    _found(
        "race_reason",
        str,
        "of `tune`: why it won or was dropped, and what was seen",
        shown=Shown("why", place=6, keep=79),
    ),
    _found(
        "race_not_tried", str, "of the answer of `tune`: the most promising ways that were not tried, and why"
    ),
    _found("race_hopeless", str, "of the answer of `tune`: ways that were not started as they cannot win"),
    _work("task", str, "`generate`, `perplexity` or `train`"),
    _implied("model", str, "model as asked for, maybe a list of candidates"),
    Param(
        "model_id",
        str,
        "the candidate that was really loaded",
        shown=Shown("model", place=10, keep=64),
        choice=None,
    ),
    _found("revision", str, "git revision of a hub model"),
    Param("backend", str, "name of the engine", shown=Shown("backend", place=40, keep=59)),
    _implied("device_requested", str, "device as asked for"),
    Param("device", str, "device as used", shown=Shown("device", place=20, keep=58), choice="{}"),
    _implied("dtype_requested", str, "dtype as asked for"),
    Param(
        "dtype",
        str,
        "dtype of the loaded parameters, with the reason where it is not the one asked for",
        shown=Shown("dtype", place=30, keep=61),
        choice="{}",
    ),
    Param(
        "quantization",
        str,
        "name of the quantization recipe, or `none`",
        shown=Shown("quantization", place=50, keep=62),
    ),
    Param(
        "compile",
        str,
        "whether and how it is compiled: `none`, `default` or `max-autotune`",
        shown=Shown("compiled", place=55, keep=56),
    ),
    _implied(
        "decode_step",
        str,
        "how a decode step is computed: `eager`, or compiled over a static cache, with fused products or as the model is",
    ),
    Param(
        "use_cache",
        bool,
        "whether the KV cache is used",
        shown=Shown("KV cache", place=90, keep=48),
        choice="KV cache {}",
    ),
    Param(
        "padding_side",
        str,
        "side of the pads of a batch with unequal lengths",
        shown=Shown("padding", place=100, keep=46),
        choice="{} padding",
    ),
    Param(
        "batch_size", int, "rows of a batch", shown=Shown("batch", place=80, keep=52), choice="batch size {}"
    ),
    _work(
        "prompt_tokens",
        int,
        "real tokens of the prompt; of a batch, its longest row",
        shown=Shown("prompt tokens", place=60, keep=50),
    ),
    _work("prompts", int, "number of prompts worked off by one repeat"),
    Param(
        "pad_to_multiple",
        int,
        "a batch is padded to a multiple of so many tokens",
        shown=Shown("padded to", _multiple, place=120, quiet=True, keep=44),
        choice="padding to a multiple of {}",
    ),
    _found("compare_unpadded", bool, "whether each row is also generated alone, to compare"),
    _implied(
        "rows_differing", str, "numbers (from 0) of the rows that differ from being generated alone, or none"
    ),
    _implied("prompt_tokens_per_row", str, "real tokens of each prompt of the batch, as a comma list"),
    _implied(
        "output_digest", str, "digest of the generated token ids: equal where two runs generated the same"
    ),
    _implied("prompt_tokens_total", int, "real prompt tokens of the batch, pads excluded"),
    _work("prompt_share", float, "share of the room in the context that the prompt is repeated to"),
    _work("max_prompt_tokens", int, "tokens of a prompt at most, even where the context has room for more"),
    Param(
        "empty_prompt",
        str,
        "what a text without tokens becomes: `error`, or one start token (`bos`)",
        choice=None,
    ),
    Param(
        "overlong_prompt",
        str,
        "what a prompt that is too long becomes: `error`, or its last tokens (`truncate`)",
        choice=None,
    ),
    _found(
        "prompt_rule",
        str,
        "the rule that changed the prompt, if one did: what an empty or overlong one became",
    ),
    _found("prompt_truncated_tokens", int, "tokens cut off the front of an overlong prompt"),
    _found(
        "special_tokens_in_prompt",
        int,
        "special tokens among the prompt's: put there by the tokenizer, or spelled by the text",
    ),
    _work("max_new_tokens", int, "new tokens per row", shown=Shown("new tokens", place=70, keep=25)),
    _work("ignore_eos", bool, "whether the end-of-sequence token is suppressed while timing"),
    Param("decoding", str, "how a token is chosen: `greedy`", choice=None),
    _repeats("warmup", int, "calls made first and not counted"),
    _repeats("min_repeats", int, "counted calls at least"),
    _repeats("max_repeats", int, "counted calls at most"),
    _repeats("min_seconds", float, "seconds of counted calls at least"),
    _repeats(
        "max_seconds",
        float,
        "cap on the counted repeats: after the first, none starts that would end beyond so many seconds",
    ),
    _repeats(
        "target_ci", float, "half width of the 95 % interval, as a share of the median, that ends early"
    ),
    _implied("repeats", int, "counted calls really made"),
    _found("corpus", str, "corpus that is scored or trained on"),
    _convention("corpus_digest", str, "digest of the corpus' text"),
    _found("corpus_blank_rows", int, "rows of the corpus that were left out because they hold no text"),
    _found(
        "scored_text_digest",
        str,
        "digest of the original text that the scored tokens cover; absent where the tokenizer does not tell",
    ),
    _found(
        "scored_tokens_digest",
        str,
        "digest of the token ids that were read and predicted: what the tokenizer made of the text",
    ),
    Param(
        "reference",
        str,
        "model that next-token distributions were compared with, and how it was computed",
        choice=None,
    ),
    Param("reference_tokens", int, "tokens on which they were compared at most", choice=None),
    _convention(
        "protocol",
        str,
        "perplexity protocol; two protocols are never compared",
        shown=Shown("protocol", place=110, keep=22),
    ),
    _convention(
        "max_length",
        int,
        "in `documents`: tokens of a document at most; in `rolling`: tokens read at most to predict one",
    ),
    _convention("stride", int, "in `rolling`: new tokens of each window after the first; 0 in `documents`"),
    _convention(
        "bos_rule",
        str,
        "what is put before a text or stream: what the `tokenizer` adds by itself, the `model`'s BOS (or EOS), or `none`",
    ),
    _convention("max_tokens", int, "in `rolling`: tokens of the stream that are used at most; 0: all"),
    Param("start", str, "of `train`: fresh weights (`scratch`), or the model's (`weights`)"),
    _work("split", str, "how text was held out: whole documents (`document`), or the end (`contiguous`)"),
    _work("validation_share", float, "share of the characters that is held out"),
    _work("validation_tokens", int, "tokens of the held-out text that are scored at most; 0: all"),
    _work("sequence_length", int, "tokens that a training window reads"),
    Param("window_stride", int, "tokens between the beginnings of training windows; 0: sequence_length"),
    _found("train_windows", int, "windows that are trained on"),
    Param("accumulate", int, "forward passes whose gradients make one step"),
    Param("steps", int, "optimizer steps at most"),
    Param("learning_rate", float, "the highest learning rate"),
    Param("warmup_steps", int, "steps until it is reached; half a cosine to a tenth of it follows"),
    _implied(
        "flops_per_token",
        int,
        "floating-point operations of training on a token by formula: 6 for each weight of a matrix product, and attention",
    ),
    _implied("flops_per_token_counted", int, "the same as PyTorch counts them over a window's operators"),
    Param("weight_decay", float, "of AdamW, on matrices only"),
    Param("clip_norm", float, "norm of the gradient at most; 0: as it comes"),
    Param("eval_every", int, "steps between evaluations"),
    Param("patience", int, "evaluations without a better one that end training early; 0: never"),
    Param("seed", int, "of the order of windows, of fresh weights and of dropout"),
    Param("sample_tokens", int, "tokens generated at each evaluation"),
    _found(
        "log_checkpoint",
        str,
        "how the best checkpoint is kept in MLflow: as files (`artifact`), also as an MLflow `model`, or not (`none`)",
    ),
    _found("ended", str, "how training ended: `finished`, or `stopped_early` by `patience`"),
    Param("tokenizer_tokens", int, "tokens of the tokenizer that was trained on the corpus", choice=None),
    Param(
        "arithmetic",
        str,
        "what matrix products are computed in: `float32`, `tf32` (float32 with factors of 10 bits of mantissa), `float16`, "
        "`bfloat16`, `int8`, `float8`; absent where the engine does not tell",
        choice=None,
    ),
    _found(
        "prefill_bound",
        str,
        "what sets the least time of a prefill on this device: moving its bytes (`memory`), or its `arithmetic`",
    ),
    _found("decode_bound", str, "the same of a decode step"),
    _found("score_bound", str, "the same of scoring"),
    _found(
        "ceilings_in_doubt",
        str,
        "which ceiling (bandwidth, matrix products) was measured on a busy machine, so that no share of the roofline is told",
    ),
    _found("energy_source", str, "whose energy counter was read: `NVML, NAME`, or `RAPL, ZONES`"),
    Param("trust_remote_code", bool, "whether code from a model's repository may run", choice=None),
    Param("architecture", str, "class of the model", choice=None),
    Param("parameters", int, "number of parameters, tied ones counted once", choice=None),
    Param("context_length", int, "positions the model was made for", choice=None),
    Param("vocab_size", int, "width of the logits", choice=None),
    Param("threads", int, "threads that computed one operation on the CPU, as the engine says"),
    Param(
        "workers",
        int,
        "workers that scored a text together, each with a copy of the model and so many `threads`; absent: one",
        shown=Shown("workers", place=85, keep=51),
    ),
    _found("score_workers", int, "the same of what is scored beside a timed task, which they do not change"),
    _found("shards", int, "shards that the text was cut into for them"),
    Param("ubatch", int, "of `llamacpp`: prompt tokens that are computed at once at most"),
    Param("flash_attention", str, "of `llamacpp`: whether attention is computed by its fused kernel"),
    Param("cache_type", str, "of `llamacpp`: what cached keys and values are stored as"),
    Param("tensor_parallel", int, "of `torch`: GPUs, or processes of a CPU, that share each layer"),
    Param("device_map", str, "of `torch`: `auto` where whole layers are spread over all GPUs"),
    Param("provider", str, "of `onnx`: execution provider", choice=None),
    Param("graph_optimization", str, "of `onnx`: how much of the graph is rewritten on loading"),
    Param(
        "onnx_attention", str, "of `onnx`: how attention is computed, `GroupQueryAttention` if it was fused"
    ),
    _found(
        "parity_max_difference",
        float,
        "of `onnx`: largest absolute difference of the float export's logits from PyTorch's",
    ),
    _found(
        "parity_max_share",
        float,
        "of `onnx`: the same as a share of the largest logit; over 0.001 it is refused",
    ),
    _found(
        "parity_top1_agreement",
        float,
        "of `onnx`: share of positions with the same most likely token, or one as likely but for rounding",
    ),
    Param("block_size", int, "of weight-only recipes: weights that share a scale"),
    Param(
        "head_bits", int, "of `int4-weight-only`: bits of the head, and of an embedding that is tied to it"
    ),
    Param("symmetric", bool, "of weight-only recipes: whether blocks have no zero point of their own"),
    Param(
        "accuracy_level", int, "of `genai` recipes: what products are computed in; 4: activations in 8 bits"
    ),
    Param("algorithm", str, "of `genai` recipes: how weights are rounded"),
    Param("group_size", int, "of `openvino` recipes: weights that share a scale"),
    Param("ratio", float, "of `openvino` recipes: share of the layers in 4 bits"),
    Param("kv_cache", str, "of `openvino`: what keys and values are kept in"),
    Param("weight_bits", int, "of weight-only recipes: bits of a weight", choice=None),
    Param(
        "keep_quality",
        str,
        "of int8 recipes and `int4-mixed`: share by which perplexity of the calibration text may rise; `none`: all is quantized",
    ),
    Param("calibration", str, "text that quantization looked at", choice=None),
    Param("calibration_digest", str, "digest of that text; never that of the scored one", choice=None),
    Param("calibration_tokens", int, "tokens of it that were used at most", choice=None),
    Param("calibration_method", str, "of int8-static: how ranges are found", choice=None),
    _found(
        "calibration_perplexity_increase", float, "share by which perplexity of the calibration text rose"
    ),
    _found(
        "pooled",
        str,
        "where a suite pooled what its experiments have in common: what each of them measured, as JSON",
    ),
    Param("linear_layers", int, "linear layers of the model", choice=None),
    _found(
        "quantized_layers",
        int,
        "of them, those that a recipe of the torch backend quantized: torchao passes over shapes that do not fit",
    ),
    _found(
        "left_out_layers",
        int,
        "of them, those left out of 8-bit activations, or of 4 bits, for the sake of quality",
    ),
    _found("left_out_parameter_share", float, "share of the layers' weights that these hold"),
)
