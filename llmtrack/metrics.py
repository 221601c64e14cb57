"""The one place for the names of params, metrics and tags, with unit, direction and meaning.

`docs/metrics.md` is generated from these tables: `python -m llmtrack.metrics > docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Better = Literal["lower", "higher", "-"]
Need = Literal["work", "machine", "convention", "text", "tokens", "reference"]
Sureness = Literal["sampled", "exact", "once"]
Role = Literal["configuration", "work", "convention", "repeats", "found", "implied"]

SPREAD_STATS = ("n", "ci_low", "ci_high", "mean", "sd", "p90", "p99")
SPREAD_PREFIX = "spread/"
SERIES_PREFIX = "series/"
ENV_TAG_PREFIX = "llmtrack.env."
REFERENCE_TAG_PREFIX = "reference_"
SETTING_PREFIX = "cfg."
ASKED_TAG = "llmtrack.asked"
ALIAS_PREFIX = "llmtrack.alias."
DIGEST_PREFIX = "llmtrack.digest."


@dataclass(frozen=True)
class Shown:
    """How a metric or a condition is shown in a table.

    Attributes:
        title: heading of its column.
        render: a value as text.
        place: columns stand in this order; those of no place come last, as they are declared.
        quiet: a metric is shown only where it is asked for, a condition only where runs differ in it.
        spread: whether half the 95 % interval is shown beside the value, as a share of it.
        told: whether the change from the baseline is told where no other metrics are asked for.
        change: what the metric is called there; empty: as in the heading.
        as_multiple: whether the change is told as a multiple and not in percent.
        keep: how long a table that is too wide for the terminal keeps the column: the least leaves first.
    """

    title: str
    render: Callable[[Any], str] = str
    place: int = 1000
    quiet: bool = False
    spread: bool = False
    told: bool = False
    change: str = ""
    as_multiple: bool = False
    keep: int = 0


@dataclass(frozen=True)
class Metric:
    """One number of a run, and all that is to be known to show and to compare it.

    Attributes:
        name: key of the metric.
        unit: unit in words, or `-` for a ratio.
        better: which direction is better, or `-` where neither is.
        meaning: what it tells.
        formula: how it is computed.
        sampled: whether it is taken once per repeat, so that it has a spread.
        needs: what must be the same on both sides to compare it: the `work`, the `machine`, or of a figure of a text the
            `convention` by which it is scored, that and the scored `text`, or these and its `tokens`, and of one against
            another model that `reference`.
        timed: whether it is computed from a time, so that one value has a noise which is not known; a unit of time tells
            so by itself.
        tolerance: relative change up to which two values count as equal, where one value tells. Sums in another order, on
            another machine or batch size, move a loss by less than a thousandth; the peak of a process depends on what
            its allocator keeps.
        headline: whether it is compared unless other metrics are named.
        shown: how tables show it; None: only where it is asked for.
    """

    name: str
    unit: str
    better: Better
    meaning: str
    formula: str
    sampled: bool = False
    needs: tuple[Need, ...] = ("work", "machine")
    timed: bool = False
    tolerance: float = 0.001
    headline: bool = False
    shown: Shown | None = None

    @property
    def of_text(self) -> bool:
        """Whether it depends on a text and how that is scored."""
        return not {"convention", "text", "tokens"}.isdisjoint(self.needs)

    @property
    def rate(self) -> bool:
        """Whether it is work per time, of which only the times may be averaged."""
        return self.unit.endswith("/s")

    @property
    def sureness(self) -> Sureness:
        """`sampled` (one value per repeat), `exact` (would be the same again) or `once` (noise is not known)."""
        if self.sampled:
            return "sampled"
        return "once" if self.timed or self.rate or self.unit in ("s", "ms") else "exact"


@dataclass(frozen=True)
class Param:
    """One condition of a run.

    Attributes:
        name: key of the param.
        kind: Python type of its values when read back.
        meaning: what it says.
        shown: how tables show it where runs differ in it, and above them where they do not; None: only where it is
            asked for.
        role: what two runs are that differ in it: of another `configuration` (what is not known is one, too), of other
            `work`, of another `convention` by which a text is scored; or of the same one, since it tells only how often
            it `repeats`, what was `found` or named on the way, or what others `implied` already, so that nobody asks
            what it changes.
    """

    name: str
    kind: type
    meaning: str
    shown: Shown | None = None
    role: Role = "configuration"


@dataclass(frozen=True)
class Tag:
    """One piece of identity or provenance of a run.

    Attributes:
        name: key of the tag.
        meaning: what it says.
    """

    name: str
    meaning: str


_LAST = Shown("")
Described = TypeVar("Described", Metric, Param)


def decimals(places: int) -> Callable[[Any], str]:
    """Return what writes a number with so many decimals."""
    return lambda value: f"{value:,.{places}f}"


def percent(places: int) -> Callable[[Any], str]:
    """Return what writes a share in percent with so many decimals."""
    return lambda value: f"{value:.{places}%}"


def _multiple(value: Any) -> str:
    return "longest" if value == 1 else f"x{value}"


def _of_stage(name: str, what: str, time: str, moved: str, done: str) -> tuple[Metric, ...]:
    """Return the metrics that place a stage of a run under the roofline of its device (`llmtrack.measure.roofline`)."""
    return (
        Metric(
            f"{name}_mib", "MiB", "lower", f"bytes that {what} must move at least", f"{moved}; bytes / 2^20"
        ),
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
            shown=Shown("floor ms/token", decimals(2), place=132, quiet=True, keep=28)
            if name == "decode"
            else None,
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


def _of_energy(prefix: str, what: str, tokens: str) -> tuple[Metric, ...]:
    """Return the metrics of the energy that timed calls took (`llmtrack.measure.energy`)."""
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


METRICS: tuple[Metric, ...] = (
    Metric(
        "total_latency_s",
        "s",
        "lower",
        "time of one whole generate call",
        "end - start",
        True,
        shown=Shown("latency s", decimals(3), place=10, keep=38),
    ),
    Metric(
        "time_to_first_token_ms",
        "ms",
        "lower",
        "time until the first token is there: prefill and the choice of that token",
        "1000 x (first stamp - start)",
        True,
        headline=True,
        shown=Shown("TTFT ms", decimals(1), place=40, keep=60),
    ),
    Metric(
        "inter_token_latency_ms",
        "ms",
        "lower",
        "mean gap between consecutive tokens; absent for a single step",
        "1000 x (last stamp - first stamp) / (steps - 1)",
        True,
        headline=True,
        shown=Shown("ITL ms", decimals(2), place=50, keep=57),
    ),
    Metric(
        "tokens_generated",
        "tokens",
        "-",
        "new tokens over all rows; pads after an early end are not counted",
        "sum of new tokens per row",
        True,
    ),
    Metric(
        "tokens_per_sec",
        "tokens/s",
        "higher",
        "new tokens per second of the whole call",
        "tokens_generated / total_latency_s",
        True,
        headline=True,
        shown=Shown("tokens/s", decimals(2), place=20, told=True, keep=100),
    ),
    Metric(
        "prefill_tokens_per_sec",
        "tokens/s",
        "higher",
        "speed of the pass over the prompt",
        "real prompt tokens of the batch / time to first token",
        True,
        shown=Shown(
            "prefill tokens/s",
            decimals(0),
            place=90,
            quiet=True,
            spread=True,
            change="prefill",
            as_multiple=True,
            keep=70,
        ),
    ),
    Metric(
        "decode_tokens_per_sec",
        "tokens/s",
        "higher",
        "speed of the steps after the first token; absent for a single step",
        "rows x (steps - 1) / (last stamp - first stamp)",
        True,
        shown=Shown(
            "decode tokens/s",
            decimals(1),
            place=100,
            quiet=True,
            spread=True,
            change="decode",
            as_multiple=True,
            keep=80,
        ),
    ),
    Metric(
        "avg_latency_per_token_ms",
        "ms",
        "lower",
        "time of the whole call per new token of a row; at batch size 1 exactly 1000 / tokens_per_sec",
        "1000 x total_latency_s / new tokens per row",
        True,
        shown=Shown("ms/token", decimals(2), place=30, keep=30),
    ),
    Metric(
        "inter_token_latency_first_quarter_ms",
        "ms",
        "lower",
        "mean gap over the first quarter of the gaps between tokens; for calls of 9 tokens and more",
        "mean of the first quarter of the gaps",
        True,
    ),
    Metric(
        "inter_token_latency_last_quarter_ms",
        "ms",
        "lower",
        "mean gap over the last quarter: without a KV cache it grows with the length",
        "mean of the last quarter of the gaps",
        True,
    ),
    Metric(
        "batch_latency_s",
        "s",
        "lower",
        "time of one batch, which is what each of its samples waits",
        "total_latency_s / batches",
        True,
        shown=Shown("s/batch", decimals(3), place=60, keep=65),
    ),
    Metric(
        "latency_per_sample_s",
        "s",
        "lower",
        "time per sample worked off",
        "total_latency_s / samples",
        True,
        shown=Shown("s/sample", decimals(3), place=70, keep=32),
    ),
    Metric(
        "tokens_per_sec_per_sample",
        "tokens/s",
        "higher",
        "how fast the text of one sample grows while its batch is worked off",
        "tokens generated / sum over the samples of the time of their call",
        True,
    ),
    Metric(
        "pad_share",
        "-",
        "lower",
        "share of the prompt positions that hold pads",
        "1 - real prompt tokens / (rows x padded length)",
        needs=("work",),
        shown=Shown("pads", percent(0), place=110, keep=47),
    ),
    Metric(
        "rows_equal_unpadded",
        "-",
        "higher",
        "share of the rows that get the same tokens as when generated alone and unpadded",
        "equal rows / rows",
        shown=Shown("rows as unpadded", percent(0), place=120, keep=54),
    ),
    Metric(
        "peak_memory_mib",
        "MiB",
        "lower",
        "most memory in use over the measured calls",
        "peak of the CUDA allocator; on CPU the worker's peak resident set",
        tolerance=0.02,
        headline=True,
        shown=Shown("peak MiB", decimals(0), place=190, keep=85),
    ),
    Metric(
        "file_size_mib",
        "MiB",
        "lower",
        "size on disk of the weights' files that are loaded; absent for weights that are made in memory",
        "bytes / 2^20",
        needs=(),
        tolerance=0.0,
        shown=Shown("file MiB", decimals(0), place=80, quiet=True, keep=35),
    ),
    Metric(
        "model_size_mib",
        "MiB",
        "lower",
        "size of the weights, tied ones counted once",
        "bytes / 2^20",
        needs=(),
        tolerance=0.0,
        headline=True,
        shown=Shown("weights MiB", decimals(0), place=200, keep=42),
    ),
    Metric(
        "memory_bandwidth_utilization",
        "-",
        "higher",
        "share of the device's copy bandwidth that decoding reaches (MBU)",
        "(weights + KV cache read per step) x steps/s / copy bandwidth",
        timed=True,
        shown=Shown("MBU", percent(0), place=130, quiet=True, keep=53),
    ),
    *_of_stage(
        "prefill",
        "a pass over the prompts",
        "time to first token",
        "weights + cache written",
        "tokens x (operations of the body) + rows x head + attention to n (n + 1) / 2 tokens of a row of n",
    ),
    *_of_stage(
        "decode",
        "a decode step",
        "inter-token latency",
        "weights + KV cache, the mean over the steps",
        "rows x (operations of a token) + attention to all tokens before it and to itself",
    ),
    *_of_stage(
        "score",
        "the scoring of all of a text",
        "time of scoring",
        "weights, once for each batch",
        "as of a prefill, with the head at each token",
    ),
    Metric(
        "copy_bandwidth_gb_per_s",
        "GB/s",
        "higher",
        "measured copy bandwidth of the device",
        "bytes read and written / 10^9 / s",
        needs=("machine",),
    ),
    Metric(
        "matrix_tflop_per_s",
        "TFLOP/s",
        "higher",
        "measured rate of the device's matrix products in the `arithmetic` of the run",
        "2 x n^3 / s / 10^12, the best of several n x n products of random numbers",
        needs=("machine",),
    ),
    *_of_energy("", "a new token, the prefill shared out among them", "tokens_generated of all repeats"),
    *_of_energy("score_", "a scored token", "tokens_scored"),
    Metric(
        "idle_power_w",
        "W",
        "lower",
        "power of the device with the model loaded and nothing computing, over a second before anything is timed",
        "joules / s",
        needs=("machine",),
        timed=True,
    ),
    Metric(
        "load_time_s",
        "s",
        "lower",
        "time to load the model",
        "wall-clock of reading weights and tokenizer, without fetching or converting",
        needs=("machine",),
    ),
    Metric(
        "compile_time_s",
        "s",
        "lower",
        "time to compile and capture what the shapes of a scenario need; no part of any other time; absent where nothing was "
        "compiled for it",
        "wall-clock before the calls",
        shown=Shown("compile s", decimals(1), place=95, quiet=True),
    ),
    Metric(
        "loss",
        "nats/token",
        "lower",
        "token-weighted mean negative log-likelihood",
        "sum of nll / tokens_scored, in float64",
        needs=("tokens",),
        shown=Shown("loss", decimals(4), place=130, keep=45),
    ),
    Metric(
        "loss_stderr",
        "nats/token",
        "lower",
        "standard error of the loss; absent for a single document or window",
        "standard deviation of sum of nll / tokens over 1,000 bootstrap draws (fixed seed) of whole documents, or of "
        "stretches of the stream of at least max_length tokens",
        needs=("tokens",),
    ),
    Metric(
        "perplexity",
        "-",
        "lower",
        "exponential of the loss",
        "exp(loss)",
        needs=("tokens",),
        headline=True,
        shown=Shown("perplexity", decimals(3), place=150, told=True, keep=95),
    ),
    Metric(
        "kl_divergence",
        "nats/token",
        "lower",
        "how far next-token distributions are from those of the reference variant, on the first tokens of the corpus",
        "mean of KL(reference || model)",
        needs=("tokens", "reference"),
        shown=Shown("KL nats", decimals(4), place=160, keep=63),
    ),
    Metric(
        "top1_agreement",
        "-",
        "higher",
        "share of these tokens after which model and reference find the same next token most likely",
        "equal / tokens_compared",
        needs=("tokens", "reference"),
        shown=Shown("top-1", percent(1), place=170, keep=49),
    ),
    Metric(
        "reference_perplexity_ratio",
        "-",
        "lower",
        "perplexity over the reference's on these tokens; over 1.1 it is warned of",
        "exp(loss - loss of the reference)",
        needs=("tokens", "reference"),
    ),
    Metric(
        "tokens_compared",
        "tokens",
        "-",
        "tokens that were compared with the reference",
        "count",
        needs=("convention",),
    ),
    Metric(
        "word_perplexity",
        "-",
        "lower",
        "perplexity per white-space separated word of the text; comparable across tokenizers",
        "exp(sum of nll / words_scored)",
        needs=("text",),
    ),
    Metric(
        "bits_per_byte",
        "bits/byte",
        "lower",
        "negative log-likelihood per UTF-8 byte of the text; comparable across tokenizers",
        "sum of nll / ln 2 / bytes_scored",
        needs=("text",),
    ),
    Metric(
        "loss_before",
        "nats/token",
        "lower",
        "of `train`: loss of the held-out text before the first step; `loss` is that of the best checkpoint",
        "as loss",
        needs=("tokens",),
    ),
    Metric(
        "perplexity_before",
        "-",
        "lower",
        "of `train`: exponential of loss_before",
        "exp(loss_before)",
        needs=("tokens",),
        shown=Shown("perplexity before", decimals(3), place=140, keep=75),
    ),
    Metric(
        "train_loss",
        "nats/token",
        "lower",
        "token-weighted mean cross-entropy of the windows of the last step, before it changed the weights",
        "sum of nll / targets",
        needs=("tokens", "work"),
    ),
    Metric(
        "train_tokens_per_sec",
        "tokens/s",
        "higher",
        "speed of training; evaluations and checkpoints are not part of it",
        "targets of a step / its time; once per step",
        True,
        shown=Shown("trained tokens/s", decimals(0), place=180, keep=78),
    ),
    Metric(
        "mfu",
        "-",
        "higher",
        "share of the device's peak arithmetic that training reaches, where the data sheet's peak is known",
        "train_tokens_per_sec x (6 x matrix parameters + 12 x layers x width x sequence_length) / peak FLOP/s",
        timed=True,
    ),
    Metric(
        "train_seconds", "s", "lower", "time of all steps; of a resumed training, of all its parts", "sum"
    ),
    Metric("tokens_trained", "tokens", "-", "targets of all steps", "count", needs=("work",)),
    Metric("steps_done", "steps", "-", "optimizer steps that were done", "count", needs=("work",)),
    Metric(
        "best_step",
        "steps",
        "-",
        "the step, from 1, after which the validation loss was lowest",
        "argmin",
        needs=("work",),
    ),
    Metric(
        "tokens_scored",
        "tokens",
        "-",
        "tokens that were really predicted (after the shift)",
        "count",
        needs=("convention",),
    ),
    Metric(
        "bytes_scored",
        "bytes",
        "-",
        "UTF-8 bytes of the original text that the scored tokens cover; absent where the tokenizer does not tell",
        "count",
        needs=("convention",),
    ),
    Metric(
        "words_scored",
        "words",
        "-",
        "white-space separated words of that text",
        "count",
        needs=("convention",),
    ),
    Metric(
        "unknown_tokens_scored",
        "tokens",
        "lower",
        "scored tokens that stand for text which the vocabulary does not have",
        "count",
        needs=("convention",),
    ),
    Metric(
        "bytes_without_token",
        "bytes",
        "lower",
        "bytes of the text that the tokenizer makes no token of: neither scored nor in bytes_scored",
        "count",
        needs=("convention",),
    ),
    Metric(
        "windows_scored",
        "windows",
        "-",
        "windows over the stream, in `rolling`",
        "count",
        needs=("convention",),
    ),
    Metric(
        "tokens_truncated",
        "tokens",
        "lower",
        "tokens not scored: of documents cut at max_length, or of the stream after max_tokens",
        "count",
        needs=("convention",),
    ),
    Metric(
        "documents_skipped",
        "documents",
        "lower",
        "documents of one token, of which nothing can be predicted",
        "count",
        needs=("convention",),
    ),
    Metric(
        "documents_scored", "documents", "-", "documents that were scored", "count", needs=("convention",)
    ),
    Metric(
        "scenarios_measured",
        "scenarios",
        "-",
        "of a study or suite: scenarios that were measured",
        "count",
        needs=(),
    ),
    Metric(
        "scenarios_failed",
        "scenarios",
        "lower",
        "of a study or suite: scenarios that are not finished",
        "count",
        needs=(),
    ),
    Metric(
        "best_tokens_per_sec",
        "tokens/s",
        "higher",
        "of a study or suite: most new tokens per second that a scenario reached",
        "max of tokens_per_sec",
    ),
    Metric(
        "best_gain",
        "-",
        "higher",
        "of a study or suite: the greatest gain in tokens per second over the baseline of the same work that noise does not "
        "explain; absent where there is none",
        "tokens_per_sec / that of the baseline",
        timed=True,
    ),
    Metric(
        "score_tokens_per_sec",
        "tokens/s",
        "higher",
        "speed of scoring; of several workers, of all together",
        "tokens_scored / time of scoring (of several workers, of the one that scored longest); loading is not part of it",
    ),
)

PARAMS: tuple[Param, ...] = (
    Param("scenario", str, "name of the scenario, unique within its study", role="implied"),
    Param("tuned_for", str, "of `tune`: the metric to be best in", role="found"),
    Param(
        "race_place",
        str,
        "of `tune`: `winner`, `equal` (not told from it), `dropped`, or `open`",
        shown=Shown("place", place=5, keep=93),
        role="found",
    ),
    Param(
        "race_reason",
        str,
        "of `tune`: why it won or was dropped, and what was seen",
        shown=Shown("why", place=6, keep=79),
        role="found",
    ),
    Param("task", str, "`generate`, `perplexity` or `train`", role="work"),
    Param("model", str, "model as asked for, maybe a list of candidates", role="implied"),
    Param("model_id", str, "the candidate that was really loaded", shown=Shown("model", place=10, keep=64)),
    Param("revision", str, "git revision of a hub model", role="found"),
    Param("backend", str, "name of the engine", shown=Shown("backend", place=40, keep=59)),
    Param("device_requested", str, "device as asked for", role="implied"),
    Param("device", str, "device as used", shown=Shown("device", place=20, keep=58)),
    Param("dtype_requested", str, "dtype as asked for", role="implied"),
    Param(
        "dtype",
        str,
        "dtype of the loaded parameters, with the reason where it is not the one asked for",
        shown=Shown("dtype", place=30, keep=61),
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
    Param(
        "decode_step",
        str,
        "how a decode step is computed: `eager`, or compiled over a static cache, with fused products or as the model is",
        role="implied",
    ),
    Param("use_cache", bool, "whether the KV cache is used", shown=Shown("KV cache", place=90, keep=48)),
    Param(
        "padding_side",
        str,
        "side of the pads of a batch with unequal lengths",
        shown=Shown("padding", place=100, keep=46),
    ),
    Param("batch_size", int, "rows of a batch", shown=Shown("batch", place=80, keep=52)),
    Param(
        "prompt_tokens",
        int,
        "real tokens of the prompt; of a batch, its longest row",
        shown=Shown("prompt tokens", place=60, keep=50),
        role="work",
    ),
    Param("prompts", int, "number of prompts worked off by one repeat", role="work"),
    Param(
        "pad_to_multiple",
        int,
        "a batch is padded to a multiple of so many tokens",
        shown=Shown("padded to", _multiple, place=120, quiet=True, keep=44),
    ),
    Param("compare_unpadded", bool, "whether each row is also generated alone, to compare", role="found"),
    Param(
        "rows_differing",
        str,
        "numbers (from 0) of the rows that differ from being generated alone, or none",
        role="implied",
    ),
    Param(
        "prompt_tokens_per_row",
        str,
        "real tokens of each prompt of the batch, as a comma list",
        role="implied",
    ),
    Param(
        "output_digest",
        str,
        "digest of the generated token ids: equal where two runs generated the same",
        role="implied",
    ),
    Param("prompt_tokens_total", int, "real prompt tokens of the batch, pads excluded", role="implied"),
    Param(
        "prompt_share", float, "share of the room in the context that the prompt is repeated to", role="work"
    ),
    Param(
        "max_prompt_tokens",
        int,
        "tokens of a prompt at most, even where the context has room for more",
        role="work",
    ),
    Param("empty_prompt", str, "what a text without tokens becomes: `error`, or one start token (`bos`)"),
    Param(
        "overlong_prompt",
        str,
        "what a prompt that is too long becomes: `error`, or its last tokens (`truncate`)",
    ),
    Param(
        "prompt_rule",
        str,
        "the rule that changed the prompt, if one did: what an empty or overlong one became",
        role="found",
    ),
    Param("prompt_truncated_tokens", int, "tokens cut off the front of an overlong prompt", role="found"),
    Param(
        "special_tokens_in_prompt",
        int,
        "special tokens among the prompt's: put there by the tokenizer, or spelled by the text",
        role="found",
    ),
    Param(
        "max_new_tokens", int, "new tokens per row", shown=Shown("new tokens", place=70, keep=25), role="work"
    ),
    Param("ignore_eos", bool, "whether the end-of-sequence token is suppressed while timing", role="work"),
    Param("decoding", str, "how a token is chosen: `greedy`"),
    Param("warmup", int, "calls made first and not counted", role="repeats"),
    Param("min_repeats", int, "counted calls at least", role="repeats"),
    Param("max_repeats", int, "counted calls at most", role="repeats"),
    Param("min_seconds", float, "seconds of counted calls at least", role="repeats"),
    Param(
        "max_seconds",
        float,
        "cap on the counted repeats: after the first, none starts that would end beyond so many seconds",
        role="repeats",
    ),
    Param(
        "target_ci",
        float,
        "half width of the 95 % interval, as a share of the median, that ends early",
        role="repeats",
    ),
    Param("repeats", int, "counted calls really made", role="implied"),
    Param("corpus", str, "corpus that is scored or trained on", role="found"),
    Param("corpus_digest", str, "digest of the corpus' text", role="convention"),
    Param(
        "corpus_blank_rows",
        int,
        "rows of the corpus that were left out because they hold no text",
        role="found",
    ),
    Param(
        "scored_text_digest",
        str,
        "digest of the original text that the scored tokens cover; absent where the tokenizer does not tell",
        role="found",
    ),
    Param(
        "scored_tokens_digest",
        str,
        "digest of the token ids that were read and predicted: what the tokenizer made of the text",
        role="found",
    ),
    Param(
        "reference", str, "model that next-token distributions were compared with, and how it was computed"
    ),
    Param("reference_tokens", int, "tokens on which they were compared at most"),
    Param(
        "protocol",
        str,
        "perplexity protocol; two protocols are never compared",
        shown=Shown("protocol", place=110, keep=22),
        role="convention",
    ),
    Param(
        "max_length",
        int,
        "in `documents`: tokens of a document at most; in `rolling`: tokens read at most to predict one",
        role="convention",
    ),
    Param(
        "stride",
        int,
        "in `rolling`: new tokens of each window after the first; 0 in `documents`",
        role="convention",
    ),
    Param(
        "bos_rule",
        str,
        "what is put before a text or stream: what the `tokenizer` adds by itself, the `model`'s BOS (or EOS), or `none`",
        role="convention",
    ),
    Param(
        "max_tokens",
        int,
        "in `rolling`: tokens of the stream that are used at most; 0: all",
        role="convention",
    ),
    Param("start", str, "of `train`: fresh weights (`scratch`), or the model's (`weights`)"),
    Param(
        "split",
        str,
        "how text was held out: whole documents (`document`), or the end (`contiguous`)",
        role="work",
    ),
    Param("validation_share", float, "share of the characters that is held out", role="work"),
    Param(
        "validation_tokens", int, "tokens of the held-out text that are scored at most; 0: all", role="work"
    ),
    Param("sequence_length", int, "tokens that a training window reads", role="work"),
    Param("window_stride", int, "tokens between the beginnings of training windows; 0: sequence_length"),
    Param("train_windows", int, "windows that are trained on", role="found"),
    Param("accumulate", int, "forward passes whose gradients make one step"),
    Param("steps", int, "optimizer steps at most"),
    Param("learning_rate", float, "the highest learning rate"),
    Param("warmup_steps", int, "steps until it is reached; half a cosine to a tenth of it follows"),
    Param(
        "flops_per_token",
        int,
        "floating-point operations of training on a token by formula: 6 for each weight of a matrix product, and attention",
        role="implied",
    ),
    Param(
        "flops_per_token_counted",
        int,
        "the same as PyTorch counts them over a window's operators",
        role="implied",
    ),
    Param("weight_decay", float, "of AdamW, on matrices only"),
    Param("clip_norm", float, "norm of the gradient at most; 0: as it comes"),
    Param("eval_every", int, "steps between evaluations"),
    Param("patience", int, "evaluations without a better one that end training early; 0: never"),
    Param("seed", int, "of the order of windows, of fresh weights and of dropout"),
    Param("sample_tokens", int, "tokens generated at each evaluation"),
    Param(
        "log_checkpoint",
        str,
        "how the best checkpoint is kept in MLflow: as files (`artifact`), also as an MLflow `model`, or not (`none`)",
        role="found",
    ),
    Param("ended", str, "how training ended: `finished`, or `stopped_early` by `patience`", role="found"),
    Param("tokenizer_tokens", int, "tokens of the tokenizer that was trained on the corpus"),
    Param(
        "arithmetic",
        str,
        "what matrix products are computed in: `float32`, `tf32` (float32 with factors of 10 bits of mantissa), `float16`, "
        "`bfloat16`, `int8`, `float8`; absent where the engine does not tell",
    ),
    Param(
        "prefill_bound",
        str,
        "what sets the least time of a prefill on this device: moving its bytes (`memory`), or its `arithmetic`",
        role="found",
    ),
    Param("decode_bound", str, "the same of a decode step", role="found"),
    Param("score_bound", str, "the same of scoring", role="found"),
    Param(
        "energy_source", str, "whose energy counter was read: `NVML, NAME`, or `RAPL, ZONES`", role="found"
    ),
    Param("trust_remote_code", bool, "whether code from a model's repository may run"),
    Param("architecture", str, "class of the model"),
    Param("parameters", int, "number of parameters, tied ones counted once"),
    Param("context_length", int, "positions the model was made for"),
    Param("vocab_size", int, "width of the logits"),
    Param("threads", int, "threads that computed one operation on the CPU, as the engine says"),
    Param(
        "workers",
        int,
        "workers that scored a text together, each with a copy of the model and so many `threads`; absent: one",
        shown=Shown("workers", place=85, keep=51),
    ),
    Param(
        "score_workers",
        int,
        "the same of what is scored beside a timed task, which they do not change",
        role="found",
    ),
    Param("shards", int, "shards that the text was cut into for them", role="found"),
    Param("ubatch", int, "of `llamacpp`: prompt tokens that are computed at once at most"),
    Param("flash_attention", str, "of `llamacpp`: whether attention is computed by its fused kernel"),
    Param("cache_type", str, "of `llamacpp`: what cached keys and values are stored as"),
    Param("tensor_parallel", int, "of `torch`: GPUs, or processes of a CPU, that share each layer"),
    Param("device_map", str, "of `torch`: `auto` where whole layers are spread over all GPUs"),
    Param("provider", str, "of `onnx`: execution provider"),
    Param("graph_optimization", str, "of `onnx`: how much of the graph is rewritten on loading"),
    Param(
        "onnx_attention", str, "of `onnx`: how attention is computed, `GroupQueryAttention` if it was fused"
    ),
    Param(
        "parity_max_difference",
        float,
        "of `onnx`: largest absolute difference of the float export's logits from PyTorch's",
        role="found",
    ),
    Param(
        "parity_max_share",
        float,
        "of `onnx`: the same as a share of the largest logit; over 0.001 it is refused",
        role="found",
    ),
    Param(
        "parity_top1_agreement",
        float,
        "of `onnx`: share of positions with the same most likely token",
        role="found",
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
    Param("weight_bits", int, "of weight-only recipes: bits of a weight"),
    Param(
        "keep_quality",
        str,
        "of int8 recipes and `int4-mixed`: share by which perplexity of the calibration text may rise; `none`: all is quantized",
    ),
    Param("calibration", str, "text that quantization looked at"),
    Param("calibration_digest", str, "digest of that text; never that of the scored one"),
    Param("calibration_tokens", int, "tokens of it that were used at most"),
    Param("calibration_method", str, "of int8-static: how ranges are found"),
    Param(
        "calibration_perplexity_increase",
        float,
        "share by which perplexity of the calibration text rose",
        role="found",
    ),
    Param(
        "pooled",
        str,
        "where a suite pooled what its experiments have in common: what each of them measured, as JSON",
        role="found",
    ),
    Param("linear_layers", int, "linear layers of the model"),
    Param(
        "quantized_layers",
        int,
        "of them, those that a recipe of the torch backend quantized: torchao passes over shapes that do not fit",
        role="found",
    ),
    Param(
        "left_out_layers",
        int,
        "of them, those left out of 8-bit activations, or of 4 bits, for the sake of quality",
        role="found",
    ),
    Param("left_out_parameter_share", float, "share of the layers' weights that these hold", role="found"),
)

TAGS: tuple[Tag, ...] = (
    Tag("llmtrack.kind", "`study` (one execution of an experiment) or `scenario` (one measured cell)"),
    Tag("llmtrack.experiment", "name of the llmtrack experiment"),
    Tag("llmtrack.study_id", "ties the scenario runs of a study together"),
    Tag("llmtrack.suite_id", "ties the studies of one suite together"),
    Tag("llmtrack.scenario", "name of the scenario"),
    Tag("llmtrack.baseline", "`true` for the scenario that the others of its study are compared with"),
    Tag(
        "llmtrack.outcome", "`finished`, `failed`, `killed` or `same_as`; `mlflow run` does not overwrite it"
    ),
    Tag(
        "llmtrack.process",
        "machine, its start, process id and start of the process that writes the run: by it a run that was left RUNNING is closed",
    ),
    Tag("llmtrack.failure", "kind of a failure, one word"),
    Tag("llmtrack.reason", "why a scenario failed, or was not measured twice, in one line"),
    Tag(
        "llmtrack.spread",
        "JSON: of each sampled metric how its repeats lie; read back as `spread/METRIC.STAT`",
    ),
    Tag(
        "llmtrack.warnings",
        "findings about the quality of the measurement, one a line; of a study, what of its report could not be made",
    ),
    Tag("llmtrack.same_as", "name of the scenario whose measurement also holds for this one"),
    Tag("llmtrack.scenario_id", "digest of what was asked"),
    Tag("llmtrack.workload_id", "digest of the prompts and lengths, or of the corpus and convention"),
    Tag("llmtrack.environment_id", "digest of what affects speed: hardware, versions, threads"),
    Tag("llmtrack.record_id", "identity of the record that was pushed; no two runs have the same"),
    Tag("llmtrack.omitted", "what was shortened or left out to fit MLflow's limits"),
    Tag(
        "llmtrack.taken_over",
        "runs of earlier studies that are this study's by `resume`, or by `same=reuse` of a suite: id to scenario and baseline",
    ),
    Tag(
        ASKED_TAG,
        "parameters of the experiment that are not as by default, as JSON: by these it is measured again",
    ),
    Tag("llmtrack.question", "the question that the experiment asks"),
    Tag("llmtrack.version", "version of llmtrack"),
)

METRIC_BY_NAME = {metric.name: metric for metric in METRICS}
PARAM_BY_NAME = {param.name: param for param in PARAMS}


def metric(name: str) -> Metric:
    """Return a metric's entry; of one that is not in the table, what is safe to assume."""
    return METRIC_BY_NAME.get(name) or Metric(name, "-", "-", "not known", "not known", timed=True)


def role(param: str) -> Role:
    """Return what two runs are that differ in a param; one that is not in the table configures something."""
    return PARAM_BY_NAME[param].role if param in PARAM_BY_NAME else Param.role


def params_with(*roles: Role) -> tuple[str, ...]:
    """Return the known params of some roles."""
    return tuple(param.name for param in PARAMS if param.role in roles)


def in_place(entries: Iterable[Described]) -> list[Described]:
    """Return metrics or params in the order of their columns."""
    return sorted(entries, key=lambda entry: (entry.shown or _LAST).place)


def is_digest(name: str) -> bool:
    """Return whether a condition is a hash: kept as a tag, since nobody wants it as an axis or a column of a plot."""
    return name.endswith("_digest")


def spread_key(metric: str, stat: str) -> str:
    """Return the key under which one statistic of a sampled metric is tracked."""
    return f"{SPREAD_PREFIX}{metric}.{stat}"


def series_key(name: str) -> str:
    """Return the key under which a metric with a value per step is tracked."""
    return f"{SERIES_PREFIX}{name}"


def render_markdown() -> str:
    """Return the text of docs/metrics.md."""
    metric_rows = (
        (
            f"`{m.name}`",
            m.unit,
            m.better,
            "yes" if m.sampled else "",
            ", ".join(m.needs),
            m.meaning,
            m.formula,
        )
        for m in METRICS
    )
    param_rows = ((f"`{p.name}`", p.kind.__name__, p.meaning, p.role) for p in PARAMS)
    tag_rows = ((f"`{t.name}`", t.meaning) for t in TAGS)
    stats = ", ".join(f"`{stat}`" for stat in SPREAD_STATS)
    parts = [
        "# Metrics, params and tags",
        "<!-- Generated by `python -m llmtrack.metrics > docs/metrics.md`; do not edit by hand. -->",
        "## Metrics",
        _table(("metric", "unit", "better", "sampled", "needs the same", "meaning", "formula"), metric_rows),
        "Two values are compared only where both runs have what a metric needs the same: the work (`workload_id`), the "
        "machine (`environment_id`), and of a figure of a text the convention by which it is scored, with `text` also "
        "the text that was really scored, with `tokens` also its tokens, with `reference` also the model that it was compared "
        "with.",
        "A sampled metric is taken once per repeat. Its tracked value is the median over the repeats, and "
        "its spread is tracked beside it in the tag `llmtrack.spread`, and read back by `llmtrack.runs` as "
        f"`{spread_key('METRIC', 'STAT')}` for {stats}: number of "
        "samples, bootstrap 95 % interval of the median, mean, standard deviation (ddof=1), and percentiles "
        "(p90 for n >= 10, p99 for n >= 100). The raw samples are in the artifact `samples.json`.",
        f"A metric with a value per step is tracked as `{series_key('NAME')}`; of training these are `train_loss`, "
        "`learning_rate`, `grad_norm`, `train_tokens_per_sec` and `mfu` at each step, and `val_loss` and "
        "`val_perplexity` (of the held-out text) at each evaluation. A value that is not finite is "
        "not tracked; the tag `llmtrack.omitted` names it.",
        "## Params",
        _table(("param", "type", "meaning", "role"), param_rows),
        "Two runs of one scenario that differ in a `configuration`, the `work` or a `convention` are two configurations: a "
        "newer one replaces none of the other in a comparison. How often a call `repeats`, what was `found` on the way and "
        "what others `implied` tell none apart.",
        "A study run has the experiment's settings as resolved, under `" + SETTING_PREFIX + "NAME`; `mlflow "
        "run` logs the raw ones. A fact that is not in this table is tracked under its own name, as a `configuration`. What ends in "
        f"`_digest` is kept as a tag, `{DIGEST_PREFIX}NAME`, so that no table or plot of MLflow shows it unasked.",
        "## Tags",
        _table(("tag", "meaning"), tag_rows),
        f"Facts about the machine, the versions and the model's origin (`weights_digest`, `config_digest`, `tokenizer_digest`, and the reference's under `{REFERENCE_TAG_PREFIX}`) are tags "
        f"`{ENV_TAG_PREFIX}KEY`, of a package `{ENV_TAG_PREFIX}version.PACKAGE`, such as "
        f"`{ENV_TAG_PREFIX}version.transformers`. `{ENV_TAG_PREFIX}git_branch`, `git_commit` and `git_dirty` are of the "
        f"user's repository (where the program was started, or else where the model lies), those of llmtrack's own code "
        f"are `{ENV_TAG_PREFIX}llmtrack_version` and `{ENV_TAG_PREFIX}llmtrack_git_commit`. An alias that was given by `llmtrack alias` is a tag `{ALIAS_PREFIX}NAME`, its value "
        "the time in nanoseconds.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(render_markdown(), end="")
