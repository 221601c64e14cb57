"""Metrics: the numbers of a run."""

from __future__ import annotations

from functools import partial

from llmtrack.metrics.entry import Better, Metric, Need, Shown, decimals, percent


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
    """Return the energy metrics of timed calls (`llmtrack.measure.energy`)."""
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
# fmt: on
