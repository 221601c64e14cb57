"""What does each quantization recipe win in speed and size, and what does it cost in quality?"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import BASE_TEXT
from llmtrack.decide.comparability import relative_perplexity
from llmtrack.decide.differences import change_text, difference_text, ratio_text
from llmtrack.decide.verdicts import difference_between, measure_command
from llmtrack.devices import canonical_dtype
from llmtrack.engines.options import OnnxOptions
from llmtrack.errors import UsageError
from llmtrack.experiment import Declaration, Experiment, OwnTable, SeriesOf
from llmtrack.host.packages import RUNTIMES, available, missing_recipes
from llmtrack.measure.gpus import capability
from llmtrack.metrics import SPIKE
from llmtrack.quantize.options import (
    BLOCK_SIZES,
    HEAD_BITS,
    Blocks,
    CalibrationCorpus,
    CalibrationText,
    Method,
    Static,
    Symmetric,
)
from llmtrack.quantize.recipe import find_recipe, labels_of, recipes
from llmtrack.report.plots.charts import curves_plot, scatter_plot
from llmtrack.report.sentences import reading as say
from llmtrack.run.command import command
from llmtrack.run.settings import ManyTimingOptions, ModelOptions, QualityOptions, RunOptions
from llmtrack.spec.options import Option, config_from, non_defaults, parameters
from llmtrack.spec.scenario import Scalar, Scenario, Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"
BASELINE = "torch/float32"
PRECISIONS = ("float32", "float16", "bfloat16")

TABLE = OwnTable(
    columns=(
        "file_size_mib",
        "tokens_per_sec",
        "prefill_tokens_per_sec",
        "decode_tokens_per_sec",
        "loss",
        "perplexity",
        "kl_divergence",
        "top1_agreement",
        "peak_memory_mib",
    ),
    compared=("prefill_tokens_per_sec", "decode_tokens_per_sec", "perplexity"),
)
_NO_VERDICT = ("not comparable", "missing", "failed")
# Perplexity increases that a recommendation may cost, as shares of the baseline's.
SMALL_COST, LARGER_COST = 0.01, 0.05


@dataclass(frozen=True)
class Options(OnnxOptions):
    """Options of the recipes and the onnx backend; each recipe takes its own."""

    keep_quality: Annotated[
        str,
        Option(
            "int8 with 8-bit activations, int4-mixed: exclude the worst layers until perplexity of the calibration text "
            "rises by no more than this (such as 5%); none: quantize all; auto: each recipe's own."
        ),
    ] = "auto"
    block_size: Annotated[
        int, Option("Weight-only: weights that share a scale; 0: the recipe's own.", choices=(0, *BLOCK_SIZES))
    ] = 0
    symmetric: Symmetric = Blocks.symmetric
    head_bits: Annotated[
        int,
        Option(
            "int4-weight-only: bits of the head and of a tied embedding; 0: the recipe's own.", choices=(0, *HEAD_BITS)
        ),
    ] = 0
    calibration: CalibrationCorpus = CalibrationText.calibration
    calibration_tokens: Annotated[int, Option("Tokens of the calibration text; 0: the recipe's own number.", min=0)] = 0
    calibration_method: Method = Static.calibration_method

    def of(self, backend: str, recipe: str) -> tuple[tuple[str, Scalar], ...]:
        """Return the sorted options of a variant; options left at the recipe's default are omitted."""
        chosen: dict[str, Scalar] = {}
        if backend == "onnx":
            chosen |= {
                option.name: getattr(self, option.name)
                for option in parameters(OnnxOptions)
                if getattr(self, option.name) != option.default
            }
        if recipe != "none":
            known = find_recipe(backend, recipe)
            names = [option.name for option in parameters(known.options) if hasattr(self, option.name)]
            values = {name: getattr(self, name) for name in names}
            # False is not 0 here: it requests blocks with zero points.
            chosen |= {name: value for name, value in values.items() if value is False or value not in (0, "auto")}
            if known.calibrated:
                chosen["calibration"] = self.calibration
        return tuple(sorted(chosen.items()))


@dataclass(frozen=True)
class Config(Options, QualityOptions, ModelOptions, ManyTimingOptions, RunOptions):
    """Settings of the experiment."""

    recipes: Annotated[
        tuple[str, ...],
        Option(
            "BACKEND/RECIPE, BACKEND/RECIPE@PRECISION or BACKEND/PRECISION, each optionally followed by options separated by "
            "spaces: `onnx/int4-weight-only head_bits=4`; all: what can run here."
        ),
    ] = (ALL,)
    prompt_tokens: Annotated[int, Option("Tokens of the timed prompt.", min=1)] = 256
    log_model: Annotated[bool, Option("Log each model of the onnx backend to its MLflow run, for mlflow.pyfunc.")] = (
        False
    )


def build(config: Config) -> Experiment:
    """Return the experiment: one prompt and one corpus by each recipe; PyTorch in float32 is the baseline.

    Raises:
        UsageError: there is no such recipe, no recipe takes an option, or the calibration text equals the scored one.
    """
    chosen = everything(config.device) if ALL in config.recipes else config.recipes
    chosen = (BASELINE, *(label for label in chosen if label != BASELINE))
    _check_texts(config.calibration, config.corpus)
    quality = config.check(_variant(config, BASELINE))
    scenarios = tuple(
        Scenario(
            scenario_name(label),
            _variant(config, label),
            GenerateTask((BASE_TEXT,), prompt_tokens=config.prompt_tokens, max_new_tokens=config.max_new_tokens),
            config.repeat(),
            baseline=label == BASELINE,
            quality=quality,
            keep_model=config.log_model and label.startswith("onnx/"),
        )
        for label in chosen
    )
    _refuse_unused_options(config, scenarios)
    return DECLARED.asking(config, scenarios, recipes=chosen)


def on_best(experiment: Experiment, variants: Mapping[str, Variant], runs: Runs) -> Experiment:
    """Return an experiment with its scenarios on the best quantized variant of this one.

    Args:
        experiment: another experiment.
        variants: the variants of this experiment's scenarios, by the scenario's name.
        runs: tracked runs, including this experiment's.
    """
    names = best_quantized(runs.where(lambda run: run.experiment == "quantization"))
    if not names:
        return experiment
    best, *alike = names
    scenarios = tuple(replace(scenario, variant=variants[best]) for scenario in experiment.scenarios)
    note = f", which is not told from {', '.join(alike)} in speed" if alike else ""
    return replace(experiment, scenarios=scenarios, question=f"{experiment.question} (on {best}{note})")


def best_quantized(runs: Runs) -> list[str]:
    """Return the scenarios that decode fastest at a small cost in perplexity, else a larger one, else the smallest
    cost.

    The first is the one with the lowest perplexity among those without a significant difference to the fastest; the
    others follow. Empty if no quantized run is comparable with the baseline.
    """
    key = "decode_tokens_per_sec"
    done = runs.measured("perplexity")
    base = done.baseline
    if base is None:
        return []
    done, _ = _comparable(done, base)
    quantized = done.measured(key).where(lambda run: run.text("quantization") != "none")
    if not quantized:
        return []
    for cost in (SMALL_COST, LARGER_COST):
        allowed = quantized.where(_costs_at_most(cost, base)).by(key, highest_first=True)
        if allowed:
            fastest, *others = allowed
            alike = [fastest, *(run for run in others if not difference_between(fastest, run, key).conclusive)]
            return Runs(alike).by("perplexity").scenarios
    return [quantized.by("perplexity")[0].scenario]


def _costs_at_most(cost: float, base: Run) -> Callable[[Run], bool]:
    """Return a predicate: whether a run's perplexity increase over the baseline is at most `cost`."""
    return lambda run: _perplexity_ratio(base, run) - 1 <= cost


def _perplexity_ratio(base: Run, run: Run) -> float:
    ratio, _ = relative_perplexity(base, run)
    return math.nan if ratio is None else ratio


def everything(device: str = "auto") -> tuple[str, ...]:
    """Return all labels that can run with what is installed, except recipes of converted runtimes: see `backends`.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`; with a GPU, its recipes are included.
    """
    card = None if device == "cpu" else capability()
    labels = [BASELINE, "torch/bfloat16", *(["onnx/float32"] if available("onnx") else [])]
    if card is not None:
        labels.append("torch/float16")
    for recipe in recipes():
        supported = recipe.capability is None or (card or (0, 0)) >= recipe.capability
        if supported and recipe.backend not in RUNTIMES and not recipe.lacking:
            labels.append(recipe.label)
            # Unquantized models are only fast on a GPU in 16 bits.
            if card is not None and recipe.backend == "torch" and recipe.computes == "float32":
                labels.append(f"{recipe.label}@bfloat16")
    return tuple(labels)


def parse_label(label: str) -> dict[str, str]:
    """Parse a label into the variant's backend, precision and optional recipe.

    Options stay with the backend, as in experiments with one backend.

    Raises:
        UsageError: it is not a label, or the backend has no such recipe.
    """
    recipe, *options = label.split() or [""]
    backend, slash, rest = recipe.partition("/")
    name, at, dtype = rest.partition("@")
    if not slash or not name or (at and not dtype) or (at and name in PRECISIONS):
        examples = labels_of(recipe) or ["onnx/int8-weight-only", "torch/int8-weight-only@bfloat16", "torch/bfloat16"]
        raise UsageError(
            f"{label!r} is not a recipe: write BACKEND/RECIPE, BACKEND/RECIPE@PRECISION or BACKEND/PRECISION, such as "
            f"{' or '.join(examples)}"
        )
    parts = {"backend": " ".join([backend, *options])}
    if name in PRECISIONS:
        return parts | {"dtype": name}
    computes = canonical_dtype(dtype) if dtype else find_recipe(backend, name).computes
    return parts | {"dtype": computes, "quantization": name}


def scenario_name(label: str) -> str:
    """Convert a label to a scenario's name."""
    return re.sub(r"[/@\s]+", "-", label.strip()).replace("=", "_")


def _variant(config: Config, label: str) -> Variant:
    parts = parse_label(label)
    options = config.of(parts["backend"].split()[0], parts.get("quantization", "none"))
    return config.variant(**parts, options=options)


def _refuse_unused_options(config: Config, scenarios: Sequence[Scenario]) -> None:
    used = {name for scenario in scenarios for name, _ in scenario.variant.options}
    unused = [name for name in non_defaults(config_from(Options, config)) if name not in used]
    if config.log_model and not any(scenario.keep_model for scenario in scenarios):
        unused.append("log_model")
    if unused:
        names = ", ".join(scenario.name for scenario in scenarios)
        raise UsageError(f"{' and '.join(unused)} would change nothing: none of {names} takes it")


def _check_texts(calibration: str, evaluation: str) -> None:
    from llmtrack.quality.corpora import load_corpus

    if load_corpus(calibration).digest == load_corpus(evaluation).digest:
        raise UsageError(
            f"the calibration text is the text that is scored ({evaluation}): a recipe would be judged by what it was "
            "made for; choose another --calibration or --corpus"
        )


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw speed against perplexity for both phases, and the errors of ranked layers."""
    figures = {
        f"{phase}_against_perplexity": scatter_plot(
            runs,
            f"{phase}_tokens_per_sec",
            "perplexity",
            title=f"{title} against perplexity: the lower right is better",
            x_label=f"{phase} throughput (tokens/s)",
            y_label="perplexity",
        )
        for phase, title in (("decode", "Speed of decoding"), ("prefill", "Speed of prefill"))
    }
    ranked: dict[tuple[float, ...], list[str]] = {}
    for run in runs.measured("left_out_layers"):
        values = tuple(series(run.run_id, "layer_sqnr_db"))
        ranked.setdefault(values, []).append(f"{run.scenario} ({run.params['left_out_layers']} left out)")
    # Recipes with equal rounding rank equally: draw one line with all their names.
    curves = {", ".join(names): (range(1, len(values) + 1), values) for values, names in ranked.items() if values}
    if curves:
        figures["layer_errors"] = curves_plot(
            curves,
            title="What rounding each linear layer alone does to its output",
            x_label="layer (worst first)",
            y_label="signal-to-noise ratio (dB)",
        )
    return figures


def reading(runs: Runs) -> list[str]:
    """Recommend a recipe for long prompts and for long answers, and name those not to trust."""
    done = runs.measured("perplexity", "prefill_tokens_per_sec")
    base = done.baseline
    if base is None:
        return ["The baseline was not measured, so there is nothing to compare with.", *say.doubts(runs)]
    lines = [
        f"{base.text('model_id')} on {base.text('device')}, PyTorch in float32: prefill {base.metrics['prefill_tokens_per_sec']:.0f} and decode "
        f"{base.metrics['decode_tokens_per_sec']:.1f} tokens/s{say.doubt(base)}, perplexity {base.metrics['perplexity']:.3f} ({base.text('corpus')})."
    ]
    lines += advise(done, base)
    for run in runs.measured("left_out_layers"):
        if run.params["left_out_layers"]:
            lines.append(
                f"{run.scenario} left {run.params['left_out_layers']} of {run.params['linear_layers']} layers out of {_excluded_from(run)} "
                f"({run.params['left_out_parameter_share']:.0%} of their weights): see quantization/layers.csv of its run."
            )
    missing = missing_recipes()
    return lines + ([missing] if missing else []) + say.doubts(runs)


def _excluded_from(run: Run) -> str:
    """Return the format that the sensitive layers are excluded from."""
    return f"{run.params['weight_bits']:.0f}-bit weights" if run.has("weight_bits") else "8-bit activations"


def advise(done: Runs, base: Run) -> list[str]:
    """Recommend a run for long answers and for long prompts at each cost, and name those not to trust.

    Args:
        done: runs that have both speeds and a perplexity.
        base: the run to compare with.
    """
    done, lines = _comparable(done, base)
    if undecided := say.undecided("Which is fastest", done):
        return [*undecided, *lines, *_spikes(done, base)]
    for key, use in (("decode_tokens_per_sec", "long answers"), ("prefill_tokens_per_sec", "long prompts")):
        best = [_fastest(done, base, key, cost) for cost in (SMALL_COST, LARGER_COST)]
        lines.append(_advice(best[0], base, done, key, use, SMALL_COST))
        if best[1].scenario != best[0].scenario:
            lines.append(_advice(best[1], base, done, key, use, LARGER_COST))
    return lines + _spikes(done, base)


def _spikes(done: Runs, base: Run) -> list[str]:
    ratios = {run.scenario: _perplexity_ratio(base, run) for run in done}
    return [
        f"Do not use {name}: its perplexity is {ratio_text(ratio)} the baseline's."
        for name, ratio in ratios.items()
        if ratio > SPIKE
    ]


def _fastest(done: Runs, base: Run, key: str, cost: float) -> Run:
    """Return the fastest of the runs whose perplexity increase is at most `cost`; the baseline costs nothing."""
    return max(done.where(_costs_at_most(cost, base)), key=lambda run: run.metrics[key])


def _comparable(done: Runs, base: Run) -> tuple[Runs, list[str]]:
    """Return the runs whose perplexity is comparable with the baseline's, and the reasons for the others."""
    compared = [(run, difference_between(base, run, "perplexity")) for run in done]
    refused = [
        f"{run.scenario}: {difference.words}." for run, difference in compared if difference.verdict in _NO_VERDICT
    ]
    return Runs(run for run, difference in compared if difference.verdict not in _NO_VERDICT), refused


def _advice(best: Run, base: Run, done: Runs, key: str, use: str, cost: float) -> str:
    phase = key.split("_")[0]
    start = f"For {use} at up to {cost:.0%} more perplexity"
    if best.scenario == base.scenario:
        return f"{start} nothing beats the baseline."
    difference = difference_between(base, best, key)
    if difference.verdict == "same":
        return f"{start} nothing beats the baseline: {difference.words}{say.in_doubt(difference)}."
    if not difference.conclusive or difference.ratio is None:
        return (
            f"{start}: {best.scenario} against the baseline is inconclusive ({difference.why}); "
            f"to settle it run: {measure_command(base, difference.repeats_needed)}"
        )
    allowed = done.where(_costs_at_most(cost, base))
    rivals = [run for run in allowed if run.run_id not in (best.run_id, base.run_id)]
    return (
        f"{start}: {best.scenario}{say.doubt(best)}, {difference_text(difference)} the baseline's {phase} speed "
        f"at {change_text(_perplexity_ratio(base, best))} perplexity{say.in_doubt(difference)}"
        f"{say.all_behind(best, rivals, key)}."
    )


def quick(config: Config) -> Config:
    """Return a smaller config for a first look: the fewest recipes that show the gain and cost of each kind."""
    available_here = everything(config.device)
    int8_labels = ("onnx/int8-weight-only", "torch/int8-weight-only")
    int8 = next((label for label in int8_labels if label in available_here), "")
    small_set = (BASELINE, "torch/bfloat16", "onnx/float32", int8, "onnx/int8-mixed")
    labels = tuple(label for label in small_set if label in available_here)
    smaller = replace(config, recipes=labels, max_length=64, prompt_tokens=128, reference_tokens=256)
    # Recipes without calibration would reject the option.
    return replace(smaller, calibration_tokens=512) if "onnx/int8-mixed" in labels else smaller


# The first export and quantization take longer than the rest of a first look.
DECLARED = Declaration(
    "quantization",
    "What does each quantization recipe win in speed and size, and what does it cost in quality?",
    Config,
    build,
    plots,
    reading,
    table=TABLE,
    position=8,
    quick=quick,
    first_look=False,
    more="([docs/quantization.md](docs/quantization.md))",
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
