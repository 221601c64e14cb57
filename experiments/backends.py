"""Which runtime should this model run on here, in which of its quantizations, and with how many threads?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import BASE_TEXT
from experiments.quantization import ALL, BASELINE, advise, parse_label, scenario_name
from llmtrack.decide.candidates import gather_candidates
from llmtrack.engines.options import MOST_THREADS
from llmtrack.experiment import Declaration, Experiment, OwnTable, SeriesOf
from llmtrack.host.formatting import plural
from llmtrack.host.packages import RUNTIMES, available, install_command, missing_modules
from llmtrack.quantize.recipe import recipes
from llmtrack.report.pareto import pareto_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import QualityOptions, RunOptions, TimingOptions, WhichModel
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs, keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The most promising of PyTorch and of our own export; the quantization experiment compares all.
OURS = {"torch": ("torch/bfloat16",), "onnx": ("onnx/float32", "onnx/int8-weight-only", "onnx/int4-weight-only")}
SPEEDS = {"decode": "decode_tokens_per_sec", "prefill": "prefill_tokens_per_sec"}

TABLE = OwnTable(
    columns=(
        "threads",
        "batch_size",
        "prompt_tokens",
        "file_size_mib",
        "load_time_s",
        "prefill_tokens_per_sec",
        "decode_tokens_per_sec",
        "memory_bandwidth_utilization",
        "perplexity",
        "kl_divergence",
        "top1_agreement",
        "peak_memory_mib",
    ),
    compared=("prefill_tokens_per_sec", "decode_tokens_per_sec", "perplexity"),
)


@dataclass(frozen=True)
class Config(QualityOptions, WhichModel, TimingOptions, RunOptions):
    """Settings of the experiment."""

    recipes: Annotated[
        tuple[str, ...],
        Option(
            "BACKEND/RECIPE or BACKEND/PRECISION, each optionally followed by options separated by spaces: "
            "`onnx/int4-weight-only head_bits=4`; all: of each available backend."
        ),
    ] = (ALL,)
    threads: Annotated[
        tuple[int, ...], Option("Numbers of threads; 0: PyTorch's default.", min=0, max=MOST_THREADS)
    ] = (0,)
    lengths: Annotated[tuple[int, ...], Option("Tokens of the timed prompts.", min=1)] = (64, 256)
    sizes: Annotated[
        tuple[int, ...], Option("Batch sizes; all but the first of the first length only.", min=1, max=16_384)
    ] = (1, 4)
    # Enough for significance among all arms if everything is installed.
    min_repeats: Annotated[int, Option("Minimum number of counted calls.", min=1)] = 7

    def __post_init__(self) -> None:
        if isinstance(self.threads, int):  # the suite passes a single number
            object.__setattr__(self, "threads", (self.threads,))
        super().__post_init__()


def everything() -> tuple[str, ...]:
    """Return the default recipes: floats and the most promising recipes of each installed backend."""
    labels = [BASELINE, *OURS["torch"]]
    if available("onnx", "any"):
        labels += OURS["onnx"]
    for backend in RUNTIMES:
        if available(backend):
            runnable = (recipe.label for recipe in recipes() if recipe.backend == backend and not recipe.lacking)
            labels += [f"{backend}/float32", *runnable]
    return tuple(labels)


def has_alternatives() -> bool:
    """Return whether there is more than one backend to compare."""
    return any(available(backend) for backend in ("onnx", *RUNTIMES))


def build(config: Config) -> Experiment:
    """Return the experiment: each recipe at each number of threads; PyTorch in float32 at the first is the baseline.

    Quality is scored with the longest prompt of the first batch size, as it does not depend on the prompt.

    Raises:
        UsageError: there is no such recipe.
    """
    chosen = everything() if ALL in config.recipes else config.recipes
    chosen = (BASELINE, *(label for label in chosen if label != BASELINE))
    quality = config.check(_variant(config, BASELINE, config.threads[0]))
    first_size, *other_sizes = config.sizes
    shapes = [(length, first_size) for length in config.lengths]
    shapes += [(config.lengths[0], size) for size in other_sizes]
    scenarios = tuple(
        Scenario(
            _name(config, label, threads, length, size),
            _variant(config, label, threads),
            GenerateTask(
                (BASE_TEXT,) * size, prompt_tokens=length, max_new_tokens=config.max_new_tokens, batch_size=size
            ),
            config.repeat(),
            baseline=label == BASELINE and threads == config.threads[0],
            quality=quality if (length, size) == (max(config.lengths), first_size) else None,
        )
        for label in chosen
        for threads in config.threads
        for length, size in shapes
    )
    return DECLARED.asking(config, scenarios, recipes=chosen)


def _variant(config: Config, label: str, threads: int) -> Variant:
    return config.variant(**parse_label(label), options=(("threads", threads),) if threads else ())


def _name(config: Config, label: str, threads: int, length: int, size: int) -> str:
    parts = [scenario_name(label), f"prompt-{length}"]
    parts += [f"batch-{size}"] if size != config.sizes[0] else []
    parts += [f"threads-{threads}"] if len(config.threads) > 1 else []
    return "-".join(parts)


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw the Pareto front of speed and perplexity for both phases, at each number of threads."""
    figures = {}
    for threads, scored in _by_threads(runs):
        for phase, speed in SPEEDS.items():
            points = gather_candidates(scored, speed, "perplexity")
            figures[f"{phase}_against_perplexity_{threads}_threads"] = pareto_plot(points, speed, "perplexity")
    return figures


def reading(runs: Runs) -> list[str]:
    """Recommend a recipe per number of threads, and name what was not scored or is not installed."""
    lines: list[str] = []
    for threads, scored in _by_threads(runs):
        with_threads = plural(threads, "thread")
        base = next((run for run in scored if (run.text("backend"), run.text("dtype")) == ("torch", "float32")), None)
        if base is None:
            lines.append(f"With {with_threads} PyTorch in float32 was not measured: there is nothing to compare with.")
            continue
        lines.append(
            f"{base.text('model_id')} with {with_threads}, PyTorch in float32: prefill {base.metrics['prefill_tokens_per_sec']:.0f} and "
            f"decode {base.metrics['decode_tokens_per_sec']:.1f} tokens/s{say.doubt(base)}, perplexity {base.metrics['perplexity']:.3f} ({base.text('corpus')})."
        )
        lines += advise(scored, base)
    if not lines:
        lines.append("Nothing was both timed and scored, so there is nothing to compare.")
    lines += [f"{run.name} was timed and not scored." for run in _unscored(runs)]
    missing = [backend for backend in ("onnx", *RUNTIMES) if missing_modules(backend)]
    if missing:
        lines.append(f"Not installed: {'; '.join(f'{backend} ({install_command(backend)})' for backend in missing)}.")
    return lines + say.doubts(runs)


def _by_threads(runs: Runs) -> list[tuple[int, Runs]]:
    """Group the runs that have both speeds and a perplexity by their number of threads."""
    groups: dict[int, list[Run]] = {}
    for run in runs.measured("perplexity", *SPEEDS.values(), "threads"):
        groups.setdefault(int(run.params["threads"]), []).append(run)
    return [(threads, Runs(groups[threads])) for threads in sorted(groups)]


def _unscored(runs: Runs) -> Runs:
    """Return one run for each backend and recipe without any score."""
    names = ("backend", "quantization", "dtype")
    scored = set(keys(runs.measured("perplexity"), names))
    timed = runs.measured(SPEEDS["decode"]).first_of_each(*names)
    return Runs(run for run, key in zip(timed, keys(timed, names), strict=True) if key not in scored)


def quick(config: Config) -> Config:
    """Return a smaller config for a first look."""
    return replace(config, max_length=64, lengths=(16, 128), sizes=(1,), reference_tokens=256)


# Converting the model for each runtime takes longer than the rest of a first look.
DECLARED = Declaration(
    "backends",
    "Which runtime should this model run on here, in which of its quantizations, and with how many threads?",
    Config,
    build,
    plots,
    reading,
    table=TABLE,
    position=10,
    quick=quick,
    first_look=False,
    applies=has_alternatives,
    more="([docs/backends.md](docs/backends.md))",
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
