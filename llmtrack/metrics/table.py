"""The tables of all metrics (numbers of a run), params (its conditions) and tags (its identity and provenance)."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmtrack.metrics.entry import Better, Metric, Need, Param, Shown, Tag, decimals, percent
from llmtrack.metrics.names import ASKED_TAG, DETAILS_TAG, ENVIRONMENT_TAG

SPIKE = 1.1
"""Perplexity ratio to the reference or baseline from which a warning is given."""

_speed = partial(Shown, quiet=True, spread=True)
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
def _of_stage(name: str, stage: str, time: str, moved: str, done: str) -> tuple[Metric, ...]:
    """Return the roofline metrics of a stage (`llmtrack.measure.roofline`)."""
    shown = Shown("floor ms/token", decimals(2), order=132, quiet=True, priority=28) if name == "decode" else None
    return (
        Metric(f"{name}_mib", "MiB", "lower", f"minimum bytes that {stage} must move", f"{moved}; bytes / 2^20"),
        Metric(f"{name}_gflop", "GFLOP", "lower", f"operations of the matrix products of {stage}", f"{done}; two per multiply-add, / 10^9"),
        Metric(f"{name}_floor_ms", "ms", "lower", f"minimum time of {stage} on this device", "1000 x max(bytes / copy bandwidth, operations / rate of matrix products)", timed=True, shown=shown),
        Metric(f"{name}_floor_share", "-", "higher", f"how close {stage} comes to that minimum: 1 is the limit of the device", f"{name}_floor_ms / {time}", timed=True),
        Metric(f"{name}_flops_utilization", "-", "higher", f"share of the device's measured rate of matrix products that {stage} reaches (MFU)", f"{name}_gflop / {time} / matrix_tflop_per_s", timed=True),
    )


def _count(name: str, unit: str, meaning: str, better: Better = "-", needs: tuple[Need, ...] = ("convention",)) -> Metric:
    return Metric(name, unit, better, meaning, "count", needs=needs)


def _of_energy(prefix: str, token: str, tokens: str) -> tuple[Metric, ...]:
    """Return the energy metrics of timed calls (`llmtrack.measure.gauges`)."""
    shown = Shown("J/token", decimals(3), order=135, quiet=True, priority=27) if not prefix else None
    return (
        Metric(f"{prefix}joules_per_token", "J/token", "lower", f"energy of {token}: of the GPU by its own counter, or of the CPU's packages and memory (RAPL), including other processes; absent without a counter, or if the calls are too short for it", f"joules over the timed calls / {tokens}", timed=True, shown=shown),
        Metric(f"{prefix}power_w", "W", "-", "mean power over the same calls", "joules / s", timed=True),
        Metric(f"{prefix}idle_energy_share", "-", "-", "share of that energy that the device would use idle, with the model loaded", "idle_power_w x s / joules", timed=True),
    )


METRICS: tuple[Metric, ...] = (
    Metric("total_latency_s", "s", "lower", "duration of a whole generate call", "end - start", True, shown=Shown("latency s", decimals(3), order=10, priority=38)),
    Metric("time_to_first_token_ms", "ms", "lower", "time until the first token: prefill and the choice of that token", "1000 x (first stamp - start)", True, headline=True, shown=Shown("TTFT ms", decimals(1), order=40, priority=60)),
    Metric("inter_token_latency_ms", "ms", "lower", "mean gap between consecutive tokens; absent for a single step", "1000 x (last stamp - first stamp) / (steps - 1)", True, headline=True, shown=Shown("ITL ms", decimals(2), order=50, priority=57)),
    Metric("tokens_generated", "tokens", "-", "new tokens of all rows, without pads after an early end", "sum of new tokens per row", True),
    Metric("tokens_per_sec", "tokens/s", "higher", "new tokens per second of the whole call", "tokens_generated / total_latency_s", True, headline=True, shown=Shown("tokens/s", decimals(2), order=20, compared=True, priority=100)),
    Metric("prefill_tokens_per_sec", "tokens/s", "higher", "speed of the prompt pass", "prompt tokens of the batch without pads / time to first token", True, shown=_speed("prefill tokens/s", decimals(0), order=90, change="prefill", priority=70)),
    Metric("decode_tokens_per_sec", "tokens/s", "higher", "speed of the steps after the first token; absent for a single step", "rows x (steps - 1) / (last stamp - first stamp)", True, shown=_speed("decode tokens/s", decimals(1), order=100, change="decode", priority=80)),
    Metric("avg_latency_per_token_ms", "ms", "lower", "duration of the whole call per new token of a row; at batch size 1 exactly 1000 / tokens_per_sec", "1000 x total_latency_s / new tokens per row", True, shown=Shown("ms/token", decimals(2), order=30, priority=30)),
    Metric("inter_token_latency_first_quarter_ms", "ms", "lower", "mean of the first quarter of the gaps between tokens; for calls of at least 9 tokens", "mean of the first quarter of the gaps", True),
    Metric("inter_token_latency_last_quarter_ms", "ms", "lower", "mean of the last quarter of the gaps: without a KV cache it grows with the length", "mean of the last quarter of the gaps", True),
    Metric("batch_latency_s", "s", "lower", "duration of a batch, for which each of its samples waits", "total_latency_s / batches", True, shown=Shown("s/batch", decimals(3), order=60, priority=65)),
    Metric("latency_per_sample_s", "s", "lower", "time per processed sample", "total_latency_s / samples", True, shown=Shown("s/sample", decimals(3), order=70, priority=32)),
    Metric("tokens_per_sec_per_sample", "tokens/s", "higher", "speed at which the text of one sample grows while its batch is processed", "tokens generated / sum over the samples of the duration of their call", True),
    Metric("pad_share", "-", "lower", "share of the prompt positions that hold pads", "1 - prompt tokens without pads / (rows x padded length)", needs=("work",), shown=Shown("pads", percent(0), order=110, priority=47)),
    Metric("rows_equal_unpadded", "-", "higher", "share of the rows with the same tokens as when generated alone and unpadded", "equal rows / rows", shown=Shown("rows as unpadded", percent(0), order=120, priority=54)),
    Metric("peak_memory_mib", "MiB", "lower", "peak memory during the measured calls", "peak of the CUDA allocator; on CPU the worker's peak resident set", tolerance=0.02, headline=True, shown=Shown("peak MiB", decimals(0), order=190, priority=85)),
    Metric("file_size_mib", "MiB", "lower", "size on disk of the loaded weights; absent for weights generated in memory", "bytes / 2^20", needs=(), tolerance=0.0, shown=Shown("file MiB", decimals(0), order=80, quiet=True, priority=35)),
    Metric("model_size_mib", "MiB", "lower", "size of the weights, tied ones counted once", "bytes / 2^20", needs=(), tolerance=0.0, headline=True, shown=Shown("weights MiB", decimals(0), order=200, priority=42)),
    Metric("memory_bandwidth_utilization", "-", "higher", "share of the device's copy bandwidth that decoding reaches (MBU)", "(weights + KV cache read per step) x steps/s / copy bandwidth", timed=True, shown=Shown("MBU", percent(0), order=130, quiet=True, priority=53)),
    *_of_stage("prefill", "a prompt pass", "time to first token", "weights + cache written", "tokens x (operations of the body) + rows x head + attention to n (n + 1) / 2 tokens of a row of n"),
    *_of_stage("decode", "a decode step", "inter-token latency", "weights + KV cache, mean over the steps", "rows x (operations of a token) + attention to itself and all tokens before"),
    *_of_stage("score", "scoring a whole text", "time of scoring", "weights, once per batch", "as for a prefill, with the head at each token"),
    Metric("copy_bandwidth_gb_per_s", "GB/s", "higher", "measured copy bandwidth of the device", "bytes read and written / 10^9 / s", needs=("machine",)),
    Metric("matrix_tflop_per_s", "TFLOP/s", "higher", "measured rate of matrix products of the device in the `arithmetic` of the run", "2 x n^3 / s / 10^12, best of several n x n products of random numbers", needs=("machine",)),
    *_of_energy("", "a new token, including its share of the prefill", "tokens_generated of all repeats"),
    *_of_energy("score_", "a scored token", "tokens_scored"),
    Metric("idle_power_w", "W", "lower", "idle power of the device with the model loaded, over a second before timing", "joules / s", needs=("machine",), timed=True),
    Metric("load_time_s", "s", "lower", "time to load the model", "wall-clock time of reading weights and tokenizer, without fetching or converting", needs=("machine",)),
    Metric("compile_time_s", "s", "lower", "time to compile and capture for the shapes of a scenario, part of no other time; absent if nothing was compiled", "wall-clock time before the calls", shown=Shown("compile s", decimals(1), order=95, quiet=True)),
    Metric("loss", "nats/token", "lower", "token-weighted mean negative log-likelihood", "sum of nll / tokens_scored, in float64", needs=("tokens",), shown=Shown("loss", decimals(4), order=130, priority=45)),
    Metric("loss_stderr", "nats/token", "lower", "standard error of the loss; absent for a single document or window", "standard deviation of sum of nll / tokens over 1,000 bootstrap draws (fixed seed) of whole documents, or of blocks of the stream of at least max_length tokens", needs=("tokens",)),
    Metric("perplexity", "-", "lower", "exponential of the loss", "exp(loss)", needs=("tokens",), headline=True, shown=Shown("perplexity", decimals(3), order=150, compared=True, priority=95)),
    Metric("kl_divergence", "nats/token", "lower", "divergence of next-token distributions from those of the reference variant, on the first tokens of the corpus", "mean of KL(reference || model)", needs=("tokens", "reference"), shown=Shown("KL nats", decimals(4), order=160, priority=63)),
    Metric("top1_agreement", "-", "higher", "share of these tokens after which model and reference rank the same next token first", "equal / tokens_compared", needs=("tokens", "reference"), shown=Shown("top-1", percent(1), order=170, priority=49)),
    Metric("reference_perplexity_ratio", "-", "lower", f"perplexity divided by the reference's on these tokens; more than {SPIKE} gives a warning", "exp(loss - loss of the reference)", needs=("tokens", "reference")),
    _count("tokens_compared", "tokens", "tokens compared with the reference"),
    Metric("word_perplexity", "-", "lower", "perplexity per whitespace-separated word of the text; comparable across tokenizers", "exp(sum of nll / words_scored)", needs=("text",)),
    Metric("bits_per_byte", "bits/byte", "lower", "negative log-likelihood per UTF-8 byte of the text; comparable across tokenizers", "sum of nll / ln 2 / bytes_scored", needs=("text",)),
    Metric("loss_before", "nats/token", "lower", "of `train`: loss on the held-out text before the first step; `loss` is that of the best checkpoint", "as loss", needs=("tokens",)),
    Metric("perplexity_before", "-", "lower", "of `train`: exponential of loss_before", "exp(loss_before)", needs=("tokens",), shown=Shown("perplexity before", decimals(3), order=140, priority=75)),
    Metric("train_loss", "nats/token", "lower", "token-weighted mean cross-entropy on the windows of the last step, before its update", "sum of nll / targets", needs=("tokens", "work")),
    Metric("train_tokens_per_sec", "tokens/s", "higher", "training speed, without evaluations and checkpoints", "targets of a step / its time; once per step", True, shown=Shown("trained tokens/s", decimals(0), order=180, priority=78)),
    Metric("mfu", "-", "higher", "share of the device's peak arithmetic that training reaches; absent if the data sheet's peak is unknown", "train_tokens_per_sec x (6 x matrix parameters + 12 x layers x width x sequence_length) / peak FLOP/s", timed=True),
    Metric("train_seconds", "s", "lower", "time of all steps, including those before a training was resumed", "sum"),
    _count("tokens_trained", "tokens", "targets of all steps", needs=("work",)),
    _count("steps_done", "steps", "completed optimizer steps", needs=("work",)),
    Metric("best_step", "steps", "-", "the step, from 1, after which the validation loss was lowest", "argmin", needs=("work",)),
    _count("tokens_scored", "tokens", "predicted tokens (after the shift)"),
    _count("bytes_scored", "bytes", "UTF-8 bytes of the original text covered by the scored tokens; absent if the tokenizer reports no offsets"),
    _count("words_scored", "words", "whitespace-separated words of that text"),
    _count("unknown_tokens_scored", "tokens", "scored tokens that stand for text outside the vocabulary", better="lower"),
    _count("bytes_without_token", "bytes", "bytes of the text that the tokenizer drops: neither scored nor in bytes_scored", better="lower"),
    _count("windows_scored", "windows", "windows over the stream, in `rolling`"),
    _count("tokens_truncated", "tokens", "tokens not scored: of documents cut at max_length, or of the stream after max_tokens", better="lower"),
    _count("documents_skipped", "documents", "documents of one token, which predict nothing", better="lower"),
    _count("documents_scored", "documents", "scored documents"),
    _count("scenarios_measured", "scenarios", "of a study or suite: measured scenarios", needs=()),
    _count("scenarios_failed", "scenarios", "of a study or suite: unfinished scenarios", better="lower", needs=()),
    Metric("best_tokens_per_sec", "tokens/s", "higher", "of a study or suite: highest tokens_per_sec of a scenario", "max of tokens_per_sec"),
    Metric("best_gain", "-", "higher", "of a study or suite: largest significant gain in tokens per second over the baseline of the same work; absent if there is none", "tokens_per_sec / tokens_per_sec of the baseline", timed=True),
    Metric("score_tokens_per_sec", "tokens/s", "higher", "scoring speed, of all workers together", "tokens_scored / scoring time (of the slowest worker), without loading"),
)

PARAMS: tuple[Param, ...] = (
    _implied("scenario", str, "name of the scenario, unique within its study"),
    _named("tuned_for", str, "of `tune`: the metric to optimize"),
    _found("race_place", str, "of `tune`: `winner` (proven), `unproven` (the best so far), `proven` (but another measured better), `equal` (no significant difference to the winner), `dropped`, `not tried` (out of time), or `open`", shown=Shown("place", order=5, priority=93)),
    _found("race_reason", str, "of `tune`: why the candidate won or was dropped, with the figures", shown=Shown("why", order=6, priority=79)),
    _found("race_beaten_by", str, "of `tune`: the candidates that are better in its objective by the samples of the search"),
    _found("race_proofs", int, "of `tune`, if the finalists were remeasured: number of candidates proven against the baseline"),
    _found("race_not_tried", str, "of `tune`'s answer: the most promising candidates that were not tried, and why"),
    _found("race_hopeless", str, "of `tune`'s answer: candidates that were not started because they cannot win"),
    _work("task", str, "`generate`, `perplexity` or `train`"),
    _implied("model", str, "model as requested, possibly a list of candidates"),
    Param("model_id", str, "the candidate that was loaded", shown=Shown("model", order=10, priority=64), choice=None),
    _named("revision", str, "git revision of a hub model"),
    Param("backend", str, "name of the engine", shown=Shown("backend", order=40, priority=59)),
    _implied("device_requested", str, "device as requested"),
    Param("device", str, "device as used", shown=Shown("device", order=20, priority=58), choice="{}"),
    _implied("dtype_requested", str, "dtype as requested"),
    Param("dtype", str, "dtype of the loaded parameters, with the reason if it is not the requested one", shown=Shown("dtype", order=30, priority=61), choice="{}"),
    Param("quantization", str, "name of the quantization recipe, or `none`", shown=Shown("quantization", order=50, priority=62)),
    Param("compile", str, "how the model is compiled: `none`, `default` or `max-autotune`", shown=Shown("compiled", order=55, priority=56)),
    _implied("decode_step", str, "how a decode step is computed: `eager`, or compiled over a static cache, with fused products or with the model as it is"),
    Param("use_cache", bool, "whether the KV cache is used", shown=Shown("KV cache", order=90, priority=48), choice="KV cache {}"),
    Param("padding_side", str, "side of the pads in a batch of unequal lengths", shown=Shown("padding", order=100, priority=46), choice="{} padding"),
    Param("batch_size", int, "rows per batch", shown=Shown("batch", order=80, priority=52), choice="batch size {}"),
    _work("prompt_tokens", int, "tokens of the prompt without pads; in a batch, of its longest row", shown=Shown("prompt tokens", order=60, priority=50)),
    _work("prompts", int, "prompts processed per repeat"),
    Param("pad_to_multiple", int, "batches are padded to a multiple of this many tokens", shown=Shown("padded to", _multiple, order=120, quiet=True, priority=44), choice="padding to a multiple of {}"),
    _named("compare_unpadded", bool, "whether each row is also generated alone, for comparison"),
    _implied("rows_differing", str, "numbers (from 0) of the rows whose tokens differ from those generated alone, or none"),
    _implied("prompt_tokens_per_row", str, "tokens of each prompt of the batch without pads, separated by commas"),
    _implied("output_digest", str, "digest of the generated token ids: equal for equal outputs"),
    _implied("prompt_tokens_total", int, "prompt tokens of the batch without pads"),
    _work("prompt_share", float, "share of the free context to which the prompt is repeated"),
    _work("max_prompt_tokens", int, "maximum tokens of a prompt, even if the context has room for more"),
    Param("empty_prompt", str, "handling of a text without tokens: `error`, or one start token (`bos`)", choice=None),
    Param("overlong_prompt", str, "handling of a prompt that is too long: `error`, or keep its last tokens (`truncate`)", choice=None),
    _found("prompt_rule", str, "the rule that changed an empty or overlong prompt, if one did"),
    _found("prompt_truncated_tokens", int, "tokens cut off the front of an overlong prompt"),
    _found("special_tokens_in_prompt", int, "special tokens in the prompt, added by the tokenizer or spelled out in the text"),
    _work("max_new_tokens", int, "new tokens per row", shown=Shown("new tokens", order=70, priority=25)),
    _work("ignore_eos", bool, "whether the end-of-sequence token is suppressed during timing"),
    Param("decoding", str, "how tokens are chosen: `greedy`", choice=None),
    _repeats("warmup", int, "calls made first and not counted"),
    _repeats("min_repeats", int, "minimum number of counted calls"),
    _repeats("max_repeats", int, "maximum number of counted calls"),
    _repeats("min_seconds", float, "minimum seconds of counted calls"),
    _repeats("max_seconds", float, "cap on the seconds of counted calls: after the first, none starts that would end beyond it"),
    _repeats("target_ci", float, "half width of the 95 % interval, as a share of the median, at which repeating may stop early"),
    _implied("repeats", int, "number of counted calls"),
    _named("corpus", str, "corpus that is scored or trained on"),
    _convention("corpus_digest", str, "digest of the corpus's text"),
    _found("corpus_blank_rows", int, "rows of the corpus without text, which are skipped"),
    _found("scored_text_digest", str, "digest of the original text covered by the scored tokens; absent if the tokenizer reports no offsets"),
    _found("scored_tokens_digest", str, "digest of the token ids that were read and predicted"),
    Param("reference", str, "model whose next-token distributions were compared with, and how it was computed", choice=None),
    Param("reference_tokens", int, "maximum number of tokens compared", choice=None),
    _convention("protocol", str, "perplexity protocol; two protocols are never compared", shown=Shown("protocol", order=110, priority=22)),
    _convention("max_length", int, "in `documents`: maximum tokens of a document; in `rolling`: maximum tokens of context"),
    _convention("stride", int, "in `rolling`: new tokens of each window after the first; 0 in `documents`"),
    _convention("bos_rule", str, "start of a text or stream: what the `tokenizer` adds by itself, the `model`'s BOS (or EOS), or `none`"),
    _convention("max_tokens", int, "in `rolling`: maximum tokens of the stream; 0: all"),
    Param("start", str, "of `train`: fresh weights (`scratch`), or the model's (`weights`)"),
    _work("split", str, "how text is held out: whole documents (`document`), or the end (`contiguous`)"),
    _work("validation_share", float, "held-out share of the characters"),
    _work("validation_tokens", int, "maximum held-out tokens that are scored; 0: all"),
    _work("sequence_length", int, "tokens of a training window"),
    Param("window_stride", int, "tokens between the starts of training windows; 0: sequence_length"),
    _found("train_windows", int, "number of training windows"),
    Param("accumulate", int, "forward passes per optimizer step"),
    Param("steps", int, "maximum number of optimizer steps"),
    Param("learning_rate", float, "peak learning rate"),
    Param("warmup_steps", int, "steps of linear warm-up; a half cosine to a tenth of the peak follows"),
    _implied("flops_per_token", int, "floating-point operations of training per token, by formula: 6 for each weight of a matrix product, and attention"),
    _implied("flops_per_token_counted", int, "the same, counted by PyTorch over a window's operators"),
    Param("weight_decay", float, "AdamW weight decay, on matrices only"),
    Param("clip_norm", float, "maximum gradient norm; 0: no clipping"),
    Param("eval_every", int, "steps between evaluations"),
    Param("patience", int, "evaluations without improvement before training stops early; 0: never"),
    Param("seed", int, "seed of the data order, fresh weights and dropout"),
    Param("sample_tokens", int, "tokens generated at each evaluation"),
    _named("log_checkpoint", str, "how the best checkpoint is kept in MLflow: as files (`artifact`), also as an MLflow `model`, or not (`none`)"),
    _found("ended", str, "how training ended: `finished`, or `stopped_early` by `patience`"),
    Param("tokenizer_tokens", int, "vocabulary size of the tokenizer that was trained on the corpus", choice=None),
    Param("arithmetic", str, "arithmetic of the matrix products: `float32`, `tf32` (float32 with factors of 10 bits of mantissa), `float16`, `bfloat16`, `int8`, `float8`; absent if the engine does not report it", choice=None),
    _found("prefill_bound", str, "what bounds a prefill on this device: moving its bytes (`memory`), or its `arithmetic`"),
    _found("decode_bound", str, "the same for a decode step"),
    _found("score_bound", str, "the same for scoring"),
    _found("ceilings_in_doubt", str, "why shares of the roofline are omitted: a ceiling (bandwidth, matrix products) was measured on a busy machine, or a stage was faster than the ceilings allow"),
    _found("energy_source", str, "the energy counter that was read: `NVML, NAME`, or `RAPL, ZONES`"),
    Param("trust_remote_code", bool, "whether code from a model's repository may run", choice=None),
    Param("architecture", str, "class of the model", choice=None),
    Param("parameters", int, "number of parameters, tied ones counted once", choice=None),
    Param("context_length", int, "maximum number of positions of the model", choice=None),
    Param("vocab_size", int, "width of the logits", choice=None),
    Param("threads", int, "threads per operation on the CPU, as reported by the engine"),
    Param("workers", int, "workers that scored a text together, each with a copy of the model and this many `threads`; absent: one", shown=Shown("workers", order=85, priority=51)),
    _found("score_workers", int, "the same for what is scored beside a timed task, which they do not affect"),
    _found("shards", int, "shards of the text for these workers"),
    Param("ubatch", int, "of `llamacpp`: maximum prompt tokens computed at once"),
    Param("flash_attention", str, "of `llamacpp`: whether attention uses its fused kernel"),
    Param("cache_type", str, "of `llamacpp`: type of cached keys and values"),
    Param("tensor_parallel", int, "of `torch`: GPUs, or processes of a CPU, that share each layer"),
    Param("device_map", str, "of `torch`: `auto` if whole layers are spread over all GPUs"),
    Param("provider", str, "of `onnx`: execution provider", choice=None),
    Param("graph_optimization", str, "of `onnx`: how much of the graph is rewritten on loading"),
    Param("onnx_attention", str, "of `onnx`: how attention is computed, `GroupQueryAttention` if it was fused"),
    _found("parity_max_difference", float, "of `onnx`: largest absolute difference of the float export's logits from PyTorch's"),
    _found("parity_max_share", float, "of `onnx`: the same as a share of the largest logit; more than 0.001 is refused"),
    _found("parity_top1_agreement", float, "of `onnx`: share of positions with the same most likely token, ties by rounding included"),
    Param("block_size", int, "of weight-only recipes: weights that share a scale"),
    Param("head_bits", int, "of `int4-weight-only`: bits of the head, and of an embedding tied to it"),
    Param("symmetric", bool, "of weight-only recipes: whether blocks have no zero point"),
    Param("accuracy_level", int, "of `genai` recipes: arithmetic of the products; 4: activations in 8 bits"),
    Param("algorithm", str, "of `genai` recipes: how weights are rounded"),
    Param("group_size", int, "of `openvino` recipes: weights that share a scale"),
    Param("ratio", float, "of `openvino` recipes: share of the layers in 4 bits"),
    Param("kv_cache", str, "of `openvino`: type of cached keys and values"),
    Param("weight_bits", int, "of weight-only recipes: bits per weight", choice=None),
    Param("keep_quality", str, "of int8 recipes and `int4-mixed`: share by which perplexity of the calibration text may rise; `none`: everything is quantized"),
    Param("calibration", str, "calibration text of the quantization", choice=None),
    Param("calibration_digest", str, "digest of that text; never that of the scored text", choice=None),
    Param("calibration_tokens", int, "maximum tokens of that text that are used", choice=None),
    Param("calibration_method", str, "of int8-static: how ranges are determined", choice=None),
    _found("calibration_perplexity_increase", float, "share by which perplexity of the calibration text rose"),
    _found("pooled", str, "if a suite pooled a scenario that its experiments share: the measurement of each of them, as JSON"),
    Param("linear_layers", int, "linear layers of the model", choice=None),
    _found("quantized_layers", int, "of these, layers quantized by a recipe of the torch backend: torchao skips unsuitable shapes"),
    _found("left_out_layers", int, "of these, layers kept out of 8-bit activations, or of 4 bits, for quality"),
    _found("left_out_parameter_share", float, "share of all linear weights that are in these layers"),
)

TAGS: tuple[Tag, ...] = (
    Tag("llmtrack.kind", "`study` (one execution of an experiment) or `scenario` (one measured cell); `set_aside`: a disturbed run whose cell was remeasured, shown nowhere else"),
    Tag("llmtrack.experiment", "name of the llmtrack experiment"),
    Tag("llmtrack.study_id", "ties the scenario runs of a study together"),
    Tag("llmtrack.suite_id", "ties the studies of one suite together"),
    Tag("llmtrack.baseline", "`true` for the scenario that the others of its study are compared with", packed=True),
    Tag("llmtrack.position", "place of the scenario in its study, from 0: the order of tables", packed=True),
    Tag("llmtrack.outcome", "`finished`, `failed`, `killed` or `same_as`; `mlflow run` does not overwrite it"),
    Tag("llmtrack.process", "machine, its boot, process id and start of the process that writes the run: by it an abandoned RUNNING run is recognized and closed", while_running=True),
    Tag("llmtrack.work", "digest of everything that a study measures, and where: `resume=true` refuses work in progress in another process of the machine", while_running=True),
    Tag("llmtrack.failure", "kind of a failure, in one word"),
    Tag("llmtrack.reason", "why a scenario failed, or was not measured twice, in one line"),
    Tag("llmtrack.spread", "JSON: spread of the repeats of each sampled metric; read back as `spread/METRIC.STAT`", packed=True),
    Tag("llmtrack.warnings", "warnings about the quality of the measurement, one per line; of a study, the failed parts of its report"),
    Tag("llmtrack.same_as", "name of the scenario whose measurement also holds for this one", packed=True),
    Tag("llmtrack.scenario_id", "digest of the scenario as requested", packed=True),
    Tag("llmtrack.workload_id", "digest of the prompts and lengths, or of the corpus and convention", packed=True),
    Tag("llmtrack.environment_id", "digest of what affects speed: hardware, versions, threads"),
    Tag(ENVIRONMENT_TAG, "JSON: the facts of the environment and the model's digests, also the artifact `environment.json`; read back as `env.KEY`"),
    Tag(DETAILS_TAG, "JSON: the values below that no search needs; read back as columns of `llmtrack.runs`"),
    Tag("llmtrack.record_id", "identity of the pushed record, unique among runs"),
    Tag("llmtrack.model_uri", "`models:/ID` of the logged model of the measured configuration, which has the metrics of all its runs", packed=True),
    Tag("llmtrack.omitted", "what was shortened or left out to fit MLflow's limits"),
    Tag("llmtrack.taken_over", "runs of earlier studies that this one took over by `resume`, or by `same=reuse` of a suite: id to scenario and baseline"),
    Tag(ASKED_TAG, "non-default parameters of the experiment, as JSON, to measure it again", packed=True),
    Tag("llmtrack.question", "the question of the experiment", packed=True),
)
# fmt: on
