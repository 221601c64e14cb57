"""The tables of all metrics (numbers of a run), params (its conditions) and tags (its identity and provenance)."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmtrack.metrics.entry import Better, Metric, Need, Param, Shown, Tag, decimals, percent
from llmtrack.metrics.names import ASKED_TAG, DETAILS_TAG, ENVIRONMENT_TAG


def _of_stage(name: str, what: str, time: str, moved: str, done: str) -> tuple[Metric, ...]:
    """Return the roofline metrics of a stage (`llmtrack.measure.roofline`)."""
    return (
        Metric(f"{name}_mib", "MiB", "lower", f"bytes that {what} must move at least", f"{moved}; bytes / 2^20"),
        Metric(
            f"{name}_gflop",
            "GFLOP",
            "lower",
            f"operations of the matrix products that {what} takes",
            f"{done}; two for each multiply-add, / 10^9",
        ),
        Metric(
            f"{name}_floor_ms",
            "ms",
            "lower",
            f"the least time that {what} could take on this device",
            "1000 x max(bytes / copy bandwidth, operations / rate of matrix products)",
            timed=True,
            shown=Shown("floor ms/token", decimals(2), place=132, quiet=True, keep=28) if name == "decode" else None,
        ),
        Metric(
            f"{name}_floor_share",
            "-",
            "higher",
            f"how near {what} comes to that: 1 is as fast as the device can be",
            f"{name}_floor_ms / {time}",
            timed=True,
        ),
        Metric(
            f"{name}_flops_utilization",
            "-",
            "higher",
            f"share of the device's measured rate of matrix products that {what} reaches (MFU)",
            f"{name}_gflop / {time} / matrix_tflop_per_s",
            timed=True,
        ),
    )


def _count(
    name: str, unit: str, meaning: str, better: Better = "-", needs: tuple[Need, ...] = ("convention",)
) -> Metric:
    """Return a counting metric."""
    return Metric(name, unit, better, meaning, "count", needs=needs)


def _of_energy(prefix: str, what: str, tokens: str) -> tuple[Metric, ...]:
    """Return the energy metrics of timed calls (`llmtrack.measure.gauges`)."""
    shown = Shown("J/token", decimals(3), place=135, quiet=True, keep=27) if not prefix else None
    return (
        Metric(
            f"{prefix}joules_per_token",
            "J/token",
            "lower",
            f"energy of {what}: of the GPU by its own counter, or of the CPU's packages and memory (RAPL), whoever uses them; "
            "absent where there is no counter, or the calls are too short for it",
            f"joules over the timed calls / {tokens}",
            timed=True,
            shown=shown,
        ),
        Metric(f"{prefix}power_w", "W", "-", "mean power over the same calls", "joules / s", timed=True),
        Metric(
            f"{prefix}idle_energy_share",
            "-",
            "-",
            "share of that energy that the device takes with the model loaded and nothing computing",
            "idle_power_w x s / joules",
            timed=True,
        ),
    )


_speed = partial(Shown, quiet=True, spread=True)
"""Display of the speed of a phase."""

SPIKE = 1.1
"""Perplexity ratio to the reference or baseline from which a warning is given."""

_work = partial(Param, role="work")
_convention = partial(Param, role="convention")
_repeats = partial(Param, role="repeats")
_found = partial(Param, role="found")
_named = partial(Param, role="named")
_implied = partial(Param, role="implied")


def _multiple(value: Any) -> str:
    return "longest" if value == 1 else f"x{value}"


# One row each, regardless of line length.
# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("total_latency_s", "s", "lower", "time of one whole generate call", "end - start", True, shown=Shown("latency s", decimals(3), place=10, keep=38)),
    Metric("time_to_first_token_ms", "ms", "lower", "time until the first token is there: prefill and the choice of that token", "1000 x (first stamp - start)", True, headline=True, shown=Shown("TTFT ms", decimals(1), place=40, keep=60)),
    Metric("inter_token_latency_ms", "ms", "lower", "mean gap between consecutive tokens; absent for a single step", "1000 x (last stamp - first stamp) / (steps - 1)", True, headline=True, shown=Shown("ITL ms", decimals(2), place=50, keep=57)),
    Metric("tokens_generated", "tokens", "-", "new tokens over all rows; pads after an early end are not counted", "sum of new tokens per row", True),
    Metric("tokens_per_sec", "tokens/s", "higher", "new tokens per second of the whole call", "tokens_generated / total_latency_s", True, headline=True, shown=Shown("tokens/s", decimals(2), place=20, compared=True, keep=100)),
    Metric("prefill_tokens_per_sec", "tokens/s", "higher", "speed of the pass over the prompt", "real prompt tokens of the batch / time to first token", True, shown=_speed("prefill tokens/s", decimals(0), place=90, change="prefill", keep=70)),
    Metric("decode_tokens_per_sec", "tokens/s", "higher", "speed of the steps after the first token; absent for a single step", "rows x (steps - 1) / (last stamp - first stamp)", True, shown=_speed("decode tokens/s", decimals(1), place=100, change="decode", keep=80)),
    Metric("avg_latency_per_token_ms", "ms", "lower", "time of the whole call per new token of a row; at batch size 1 exactly 1000 / tokens_per_sec", "1000 x total_latency_s / new tokens per row", True, shown=Shown("ms/token", decimals(2), place=30, keep=30)),
    Metric("inter_token_latency_first_quarter_ms", "ms", "lower", "mean gap over the first quarter of the gaps between tokens; for calls of 9 tokens and more", "mean of the first quarter of the gaps", True),
    Metric("inter_token_latency_last_quarter_ms", "ms", "lower", "mean gap over the last quarter: without a KV cache it grows with the length", "mean of the last quarter of the gaps", True),
    Metric("batch_latency_s", "s", "lower", "time of one batch, which is what each of its samples waits", "total_latency_s / batches", True, shown=Shown("s/batch", decimals(3), place=60, keep=65)),
    Metric("latency_per_sample_s", "s", "lower", "time per sample worked off", "total_latency_s / samples", True, shown=Shown("s/sample", decimals(3), place=70, keep=32)),
    Metric("tokens_per_sec_per_sample", "tokens/s", "higher", "how fast the text of one sample grows while its batch is worked off", "tokens generated / sum over the samples of the time of their call", True),
    Metric("pad_share", "-", "lower", "share of the prompt positions that hold pads", "1 - real prompt tokens / (rows x padded length)", needs=("work",), shown=Shown("pads", percent(0), place=110, keep=47)),
    Metric("rows_equal_unpadded", "-", "higher", "share of the rows that get the same tokens as when generated alone and unpadded", "equal rows / rows", shown=Shown("rows as unpadded", percent(0), place=120, keep=54)),
    Metric("peak_memory_mib", "MiB", "lower", "most memory in use over the measured calls", "peak of the CUDA allocator; on CPU the worker's peak resident set", tolerance=0.02, headline=True, shown=Shown("peak MiB", decimals(0), place=190, keep=85)),
    Metric("file_size_mib", "MiB", "lower", "size on disk of the weights' files that are loaded; absent for weights that are made in memory", "bytes / 2^20", needs=(), tolerance=0.0, shown=Shown("file MiB", decimals(0), place=80, quiet=True, keep=35)),
    Metric("model_size_mib", "MiB", "lower", "size of the weights, tied ones counted once", "bytes / 2^20", needs=(), tolerance=0.0, headline=True, shown=Shown("weights MiB", decimals(0), place=200, keep=42)),
    Metric("memory_bandwidth_utilization", "-", "higher", "share of the device's copy bandwidth that decoding reaches (MBU)", "(weights + KV cache read per step) x steps/s / copy bandwidth", timed=True, shown=Shown("MBU", percent(0), place=130, quiet=True, keep=53)),
    *_of_stage("prefill", "a pass over the prompts", "time to first token", "weights + cache written", "tokens x (operations of the body) + rows x head + attention to n (n + 1) / 2 tokens of a row of n"),
    *_of_stage("decode", "a decode step", "inter-token latency", "weights + KV cache, the mean over the steps", "rows x (operations of a token) + attention to all tokens before it and to itself"),
    *_of_stage("score", "the scoring of all of a text", "time of scoring", "weights, once for each batch", "as of a prefill, with the head at each token"),
    Metric("copy_bandwidth_gb_per_s", "GB/s", "higher", "measured copy bandwidth of the device", "bytes read and written / 10^9 / s", needs=("machine",)),
    Metric("matrix_tflop_per_s", "TFLOP/s", "higher", "measured rate of the device's matrix products in the `arithmetic` of the run", "2 x n^3 / s / 10^12, the best of several n x n products of random numbers", needs=("machine",)),
    *_of_energy("", "a new token, the prefill shared out among them", "tokens_generated of all repeats"),
    *_of_energy("score_", "a scored token", "tokens_scored"),
    Metric("idle_power_w", "W", "lower", "power of the device with the model loaded and nothing computing, over a second before anything is timed", "joules / s", needs=("machine",), timed=True),
    Metric("load_time_s", "s", "lower", "time to load the model", "wall-clock of reading weights and tokenizer, without fetching or converting", needs=("machine",)),
    Metric("compile_time_s", "s", "lower", "time to compile and capture what the shapes of a scenario need; no part of any other time; absent where nothing was compiled for it", "wall-clock before the calls", shown=Shown("compile s", decimals(1), place=95, quiet=True)),
    Metric("loss", "nats/token", "lower", "token-weighted mean negative log-likelihood", "sum of nll / tokens_scored, in float64", needs=("tokens",), shown=Shown("loss", decimals(4), place=130, keep=45)),
    Metric("loss_stderr", "nats/token", "lower", "standard error of the loss; absent for a single document or window", "standard deviation of sum of nll / tokens over 1,000 bootstrap draws (fixed seed) of whole documents, or of stretches of the stream of at least max_length tokens", needs=("tokens",)),
    Metric("perplexity", "-", "lower", "exponential of the loss", "exp(loss)", needs=("tokens",), headline=True, shown=Shown("perplexity", decimals(3), place=150, compared=True, keep=95)),
    Metric("kl_divergence", "nats/token", "lower", "how far next-token distributions are from those of the reference variant, on the first tokens of the corpus", "mean of KL(reference || model)", needs=("tokens", "reference"), shown=Shown("KL nats", decimals(4), place=160, keep=63)),
    Metric("top1_agreement", "-", "higher", "share of these tokens after which model and reference find the same next token most likely", "equal / tokens_compared", needs=("tokens", "reference"), shown=Shown("top-1", percent(1), place=170, keep=49)),
    Metric("reference_perplexity_ratio", "-", "lower", f"perplexity over the reference's on these tokens; over {SPIKE} it is warned of", "exp(loss - loss of the reference)", needs=("tokens", "reference")),
    _count("tokens_compared", "tokens", "tokens that were compared with the reference"),
    Metric("word_perplexity", "-", "lower", "perplexity per white-space separated word of the text; comparable across tokenizers", "exp(sum of nll / words_scored)", needs=("text",)),
    Metric("bits_per_byte", "bits/byte", "lower", "negative log-likelihood per UTF-8 byte of the text; comparable across tokenizers", "sum of nll / ln 2 / bytes_scored", needs=("text",)),
    Metric("loss_before", "nats/token", "lower", "of `train`: loss of the held-out text before the first step; `loss` is that of the best checkpoint", "as loss", needs=("tokens",)),
    Metric("perplexity_before", "-", "lower", "of `train`: exponential of loss_before", "exp(loss_before)", needs=("tokens",), shown=Shown("perplexity before", decimals(3), place=140, keep=75)),
    Metric("train_loss", "nats/token", "lower", "token-weighted mean cross-entropy of the windows of the last step, before it changed the weights", "sum of nll / targets", needs=("tokens", "work")),
    Metric("train_tokens_per_sec", "tokens/s", "higher", "speed of training; evaluations and checkpoints are not part of it", "targets of a step / its time; once per step", True, shown=Shown("trained tokens/s", decimals(0), place=180, keep=78)),
    Metric("mfu", "-", "higher", "share of the device's peak arithmetic that training reaches, where the data sheet's peak is known", "train_tokens_per_sec x (6 x matrix parameters + 12 x layers x width x sequence_length) / peak FLOP/s", timed=True),
    Metric("train_seconds", "s", "lower", "time of all steps; of a resumed training, of all its parts", "sum"),
    _count("tokens_trained", "tokens", "targets of all steps", needs=("work",)),
    _count("steps_done", "steps", "optimizer steps that were done", needs=("work",)),
    Metric("best_step", "steps", "-", "the step, from 1, after which the validation loss was lowest", "argmin", needs=("work",)),
    _count("tokens_scored", "tokens", "tokens that were really predicted (after the shift)"),
    _count("bytes_scored", "bytes", "UTF-8 bytes of the original text that the scored tokens cover; absent where the tokenizer does not tell"),
    _count("words_scored", "words", "white-space separated words of that text"),
    _count("unknown_tokens_scored", "tokens", "scored tokens that stand for text which the vocabulary does not have", better="lower"),
    _count("bytes_without_token", "bytes", "bytes of the text that the tokenizer makes no token of: neither scored nor in bytes_scored", better="lower"),
    _count("windows_scored", "windows", "windows over the stream, in `rolling`"),
    _count("tokens_truncated", "tokens", "tokens not scored: of documents cut at max_length, or of the stream after max_tokens", better="lower"),
    _count("documents_skipped", "documents", "documents of one token, of which nothing can be predicted", better="lower"),
    _count("documents_scored", "documents", "documents that were scored"),
    _count("scenarios_measured", "scenarios", "of a study or suite: scenarios that were measured", needs=()),
    _count("scenarios_failed", "scenarios", "of a study or suite: scenarios that are not finished", better="lower", needs=()),
    Metric("best_tokens_per_sec", "tokens/s", "higher", "of a study or suite: most new tokens per second that a scenario reached", "max of tokens_per_sec"),
    Metric("best_gain", "-", "higher", "of a study or suite: the greatest gain in tokens per second over the baseline of the same work that noise does not explain; absent where there is none", "tokens_per_sec / that of the baseline", timed=True),
    Metric("score_tokens_per_sec", "tokens/s", "higher", "speed of scoring; of several workers, of all together", "tokens_scored / time of scoring (of several workers, of the one that scored longest); loading is not part of it"),
)

PARAMS: tuple[Param, ...] = (
    _implied("scenario", str, "name of the scenario, unique within its study"),
    _named("tuned_for", str, "of `tune`: the metric to be best in"),
    _found("race_place", str, "of `tune`: `winner` (proven), `unproven` (the best so far), `proven` (but another measured better), `equal` (no significant difference to it), `dropped`, `not tried` (given up for want of time), or `open`", shown=Shown("place", place=5, keep=93)),
    _found("race_reason", str, "of `tune`: why it won or was dropped, and what was seen", shown=Shown("why", place=6, keep=79)),
    _found("race_proofs", int, "of `tune`, where the samples were measured afresh: number of candidates proven against the baseline"),
    _found("race_not_tried", str, "of the answer of `tune`: the most promising ways that were not tried, and why"),
    _found("race_hopeless", str, "of the answer of `tune`: ways that were not started as they cannot win"),
    _work("task", str, "`generate`, `perplexity` or `train`"),
    _implied("model", str, "model as asked for, maybe a list of candidates"),
    Param("model_id", str, "the candidate that was really loaded", shown=Shown("model", place=10, keep=64), choice=None),
    _named("revision", str, "git revision of a hub model"),
    Param("backend", str, "name of the engine", shown=Shown("backend", place=40, keep=59)),
    _implied("device_requested", str, "device as asked for"),
    Param("device", str, "device as used", shown=Shown("device", place=20, keep=58), choice="{}"),
    _implied("dtype_requested", str, "dtype as asked for"),
    Param("dtype", str, "dtype of the loaded parameters, with the reason where it is not the one asked for", shown=Shown("dtype", place=30, keep=61), choice="{}"),
    Param("quantization", str, "name of the quantization recipe, or `none`", shown=Shown("quantization", place=50, keep=62)),
    Param("compile", str, "whether and how it is compiled: `none`, `default` or `max-autotune`", shown=Shown("compiled", place=55, keep=56)),
    _implied("decode_step", str, "how a decode step is computed: `eager`, or compiled over a static cache, with fused products or as the model is"),
    Param("use_cache", bool, "whether the KV cache is used", shown=Shown("KV cache", place=90, keep=48), choice="KV cache {}"),
    Param("padding_side", str, "side of the pads of a batch with unequal lengths", shown=Shown("padding", place=100, keep=46), choice="{} padding"),
    Param("batch_size", int, "rows of a batch", shown=Shown("batch", place=80, keep=52), choice="batch size {}"),
    _work("prompt_tokens", int, "real tokens of the prompt; of a batch, its longest row", shown=Shown("prompt tokens", place=60, keep=50)),
    _work("prompts", int, "number of prompts worked off by one repeat"),
    Param("pad_to_multiple", int, "a batch is padded to a multiple of so many tokens", shown=Shown("padded to", _multiple, place=120, quiet=True, keep=44), choice="padding to a multiple of {}"),
    _named("compare_unpadded", bool, "whether each row is also generated alone, to compare"),
    _implied("rows_differing", str, "numbers (from 0) of the rows that differ from being generated alone, or none"),
    _implied("prompt_tokens_per_row", str, "real tokens of each prompt of the batch, as a comma list"),
    _implied("output_digest", str, "digest of the generated token ids: equal where two runs generated the same"),
    _implied("prompt_tokens_total", int, "real prompt tokens of the batch, pads excluded"),
    _work("prompt_share", float, "share of the room in the context that the prompt is repeated to"),
    _work("max_prompt_tokens", int, "tokens of a prompt at most, even where the context has room for more"),
    Param("empty_prompt", str, "what a text without tokens becomes: `error`, or one start token (`bos`)", choice=None),
    Param("overlong_prompt", str, "what a prompt that is too long becomes: `error`, or its last tokens (`truncate`)", choice=None),
    _found("prompt_rule", str, "the rule that changed the prompt, if one did: what an empty or overlong one became"),
    _found("prompt_truncated_tokens", int, "tokens cut off the front of an overlong prompt"),
    _found("special_tokens_in_prompt", int, "special tokens among the prompt's: put there by the tokenizer, or spelled by the text"),
    _work("max_new_tokens", int, "new tokens per row", shown=Shown("new tokens", place=70, keep=25)),
    _work("ignore_eos", bool, "whether the end-of-sequence token is suppressed while timing"),
    Param("decoding", str, "how a token is chosen: `greedy`", choice=None),
    _repeats("warmup", int, "calls made first and not counted"),
    _repeats("min_repeats", int, "counted calls at least"),
    _repeats("max_repeats", int, "counted calls at most"),
    _repeats("min_seconds", float, "seconds of counted calls at least"),
    _repeats("max_seconds", float, "cap on the counted repeats: after the first, none starts that would end beyond so many seconds"),
    _repeats("target_ci", float, "half width of the 95 % interval, as a share of the median, that ends early"),
    _implied("repeats", int, "counted calls really made"),
    _named("corpus", str, "corpus that is scored or trained on"),
    _convention("corpus_digest", str, "digest of the corpus' text"),
    _found("corpus_blank_rows", int, "rows of the corpus that were left out because they hold no text"),
    _found("scored_text_digest", str, "digest of the original text that the scored tokens cover; absent where the tokenizer does not tell"),
    _found("scored_tokens_digest", str, "digest of the token ids that were read and predicted: what the tokenizer made of the text"),
    Param("reference", str, "model that next-token distributions were compared with, and how it was computed", choice=None),
    Param("reference_tokens", int, "tokens on which they were compared at most", choice=None),
    _convention("protocol", str, "perplexity protocol; two protocols are never compared", shown=Shown("protocol", place=110, keep=22)),
    _convention("max_length", int, "in `documents`: tokens of a document at most; in `rolling`: tokens read at most to predict one"),
    _convention("stride", int, "in `rolling`: new tokens of each window after the first; 0 in `documents`"),
    _convention("bos_rule", str, "what is put before a text or stream: what the `tokenizer` adds by itself, the `model`'s BOS (or EOS), or `none`"),
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
    _implied("flops_per_token", int, "floating-point operations of training on a token by formula: 6 for each weight of a matrix product, and attention"),
    _implied("flops_per_token_counted", int, "the same as PyTorch counts them over a window's operators"),
    Param("weight_decay", float, "of AdamW, on matrices only"),
    Param("clip_norm", float, "norm of the gradient at most; 0: as it comes"),
    Param("eval_every", int, "steps between evaluations"),
    Param("patience", int, "evaluations without a better one that end training early; 0: never"),
    Param("seed", int, "of the order of windows, of fresh weights and of dropout"),
    Param("sample_tokens", int, "tokens generated at each evaluation"),
    _named("log_checkpoint", str, "how the best checkpoint is kept in MLflow: as files (`artifact`), also as an MLflow `model`, or not (`none`)"),
    _found("ended", str, "how training ended: `finished`, or `stopped_early` by `patience`"),
    Param("tokenizer_tokens", int, "tokens of the tokenizer that was trained on the corpus", choice=None),
    Param("arithmetic", str, "what matrix products are computed in: `float32`, `tf32` (float32 with factors of 10 bits of mantissa), `float16`, `bfloat16`, `int8`, `float8`; absent where the engine does not tell", choice=None),
    _found("prefill_bound", str, "what sets the least time of a prefill on this device: moving its bytes (`memory`), or its `arithmetic`"),
    _found("decode_bound", str, "the same of a decode step"),
    _found("score_bound", str, "the same of scoring"),
    _found("ceilings_in_doubt", str, "why shares of the roofline are not given: a ceiling (bandwidth, matrix products) was measured on a busy machine, or a stage was faster than the ceilings allow"),
    _found("energy_source", str, "whose energy counter was read: `NVML, NAME`, or `RAPL, ZONES`"),
    Param("trust_remote_code", bool, "whether code from a model's repository may run", choice=None),
    Param("architecture", str, "class of the model", choice=None),
    Param("parameters", int, "number of parameters, tied ones counted once", choice=None),
    Param("context_length", int, "positions the model was made for", choice=None),
    Param("vocab_size", int, "width of the logits", choice=None),
    Param("threads", int, "threads that computed one operation on the CPU, as the engine says"),
    Param("workers", int, "workers that scored a text together, each with a copy of the model and so many `threads`; absent: one", shown=Shown("workers", place=85, keep=51)),
    _found("score_workers", int, "the same of what is scored beside a timed task, which they do not change"),
    _found("shards", int, "shards that the text was cut into for them"),
    Param("ubatch", int, "of `llamacpp`: prompt tokens that are computed at once at most"),
    Param("flash_attention", str, "of `llamacpp`: whether attention is computed by its fused kernel"),
    Param("cache_type", str, "of `llamacpp`: what cached keys and values are stored as"),
    Param("tensor_parallel", int, "of `torch`: GPUs, or processes of a CPU, that share each layer"),
    Param("device_map", str, "of `torch`: `auto` where whole layers are spread over all GPUs"),
    Param("provider", str, "of `onnx`: execution provider", choice=None),
    Param("graph_optimization", str, "of `onnx`: how much of the graph is rewritten on loading"),
    Param("onnx_attention", str, "of `onnx`: how attention is computed, `GroupQueryAttention` if it was fused"),
    _found("parity_max_difference", float, "of `onnx`: largest absolute difference of the float export's logits from PyTorch's"),
    _found("parity_max_share", float, "of `onnx`: the same as a share of the largest logit; over 0.001 it is refused"),
    _found("parity_top1_agreement", float, "of `onnx`: share of positions with the same most likely token, or one as likely but for rounding"),
    Param("block_size", int, "of weight-only recipes: weights that share a scale"),
    Param("head_bits", int, "of `int4-weight-only`: bits of the head, and of an embedding that is tied to it"),
    Param("symmetric", bool, "of weight-only recipes: whether blocks have no zero point of their own"),
    Param("accuracy_level", int, "of `genai` recipes: what products are computed in; 4: activations in 8 bits"),
    Param("algorithm", str, "of `genai` recipes: how weights are rounded"),
    Param("group_size", int, "of `openvino` recipes: weights that share a scale"),
    Param("ratio", float, "of `openvino` recipes: share of the layers in 4 bits"),
    Param("kv_cache", str, "of `openvino`: what keys and values are kept in"),
    Param("weight_bits", int, "of weight-only recipes: bits of a weight", choice=None),
    Param("keep_quality", str, "of int8 recipes and `int4-mixed`: share by which perplexity of the calibration text may rise; `none`: all is quantized"),
    Param("calibration", str, "text that quantization looked at", choice=None),
    Param("calibration_digest", str, "digest of that text; never that of the scored one", choice=None),
    Param("calibration_tokens", int, "tokens of it that were used at most", choice=None),
    Param("calibration_method", str, "of int8-static: how ranges are found", choice=None),
    _found("calibration_perplexity_increase", float, "share by which perplexity of the calibration text rose"),
    _found("pooled", str, "where a suite pooled what its experiments have in common: what each of them measured, as JSON"),
    Param("linear_layers", int, "linear layers of the model", choice=None),
    _found("quantized_layers", int, "of them, those that a recipe of the torch backend quantized: torchao passes over shapes that do not fit"),
    _found("left_out_layers", int, "of them, those left out of 8-bit activations, or of 4 bits, for the sake of quality"),
    _found("left_out_parameter_share", float, "share of the layers' weights that these hold"),
)

TAGS: tuple[Tag, ...] = (
    Tag("llmtrack.kind", "`study` (one execution of an experiment) or `scenario` (one measured cell); `set_aside`: a cell's run that was disturbed and remeasured, which nothing else shows"),
    Tag("llmtrack.experiment", "name of the llmtrack experiment"),
    Tag("llmtrack.study_id", "ties the scenario runs of a study together"),
    Tag("llmtrack.suite_id", "ties the studies of one suite together"),
    Tag("llmtrack.baseline", "`true` for the scenario that the others of its study are compared with", packed=True),
    Tag("llmtrack.position", "place of the scenario in its study, from 0: tables keep this order", packed=True),
    Tag("llmtrack.outcome", "`finished`, `failed`, `killed` or `same_as`; `mlflow run` does not overwrite it"),
    Tag("llmtrack.process", "machine, its start, process id and start of the process that writes the run: by it a run that was left RUNNING is closed", while_running=True),
    Tag("llmtrack.work", "digest of all that a study measures and where: `resume=true` refuses what another process of the machine is at", while_running=True),
    Tag("llmtrack.failure", "kind of a failure, one word"),
    Tag("llmtrack.reason", "why a scenario failed, or was not measured twice, in one line"),
    Tag("llmtrack.spread", "JSON: of each sampled metric how its repeats lie; read back as `spread/METRIC.STAT`", packed=True),
    Tag("llmtrack.warnings", "findings about the quality of the measurement, one a line; of a study, what of its report could not be made"),
    Tag("llmtrack.same_as", "name of the scenario whose measurement also holds for this one", packed=True),
    Tag("llmtrack.scenario_id", "digest of what was asked", packed=True),
    Tag("llmtrack.workload_id", "digest of the prompts and lengths, or of the corpus and convention", packed=True),
    Tag("llmtrack.environment_id", "digest of what affects speed: hardware, versions, threads"),
    Tag(ENVIRONMENT_TAG, "JSON: the facts of the environment and the model's digests, also the artifact `environment.json`; read back as `env.KEY`"),
    Tag(DETAILS_TAG, "JSON: the values below that no search needs; read back as columns of `llmtrack.runs`"),
    Tag("llmtrack.record_id", "identity of the record that was pushed; no two runs have the same"),
    Tag("llmtrack.model_uri", "`models:/ID` of the logged model that stands for the way to run that was measured; its metrics hold those of all runs of that way", packed=True),
    Tag("llmtrack.omitted", "what was shortened or left out to fit MLflow's limits"),
    Tag("llmtrack.taken_over", "runs of earlier studies that are this study's by `resume`, or by `same=reuse` of a suite: id to scenario and baseline"),
    Tag(ASKED_TAG, "parameters of the experiment that are not as by default, as JSON: by these it is measured again", packed=True),
    Tag("llmtrack.question", "the question that the experiment asks", packed=True),
)
# fmt: on
