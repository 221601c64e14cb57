"""What does each precision gain on a GPU, and how close does it come to the limits of the card?

Each precision is measured in the way of every study (`llmtrack.worker`): one prompt, timed; energy by the card's counter; then
perplexity of the built-in text and the distance from float32. It needs no MLflow, so that it also runs where there is none:

    python -m benchmarks.gpu_precision --model synthetic:llama-1b --output precision.json

With MLflow the same is `mlflow run . -e quantization -P device=cuda`. Prints a Markdown table, and draws `roofline.png` beside
the output where pandas and Matplotlib are there.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import torch

from experiments.prompts import BASE_TEXT
from llmtrack.engines.registry import load_variant
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.events import Event, SoFar
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.serialization import to_json
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, TrainTask
from llmtrack.tracked.run import FINISHED, Run
from llmtrack.tracked.runs import Runs
from llmtrack.train.checkpoint import checkpoints
from llmtrack.worker.measuring import EngineCache, measure_group

DTYPES = ("float32", "float16", "bfloat16")
PRECISIONS = (
    *DTYPES,
    "int8-weight-only@bfloat16",
    "int8-dynamic@bfloat16",
    "int4-weight-only",
    "float8-weight-only",
    "float8-dynamic",
)
COLUMNS = (
    ("weights MiB", "model_size_mib", "{:,.0f}"),
    ("peak MiB", "peak_memory_mib", "{:,.0f}"),
    ("prefill tok/s", "prefill_tokens_per_sec", "{:,.0f}"),
    ("decode tok/s", "decode_tokens_per_sec", "{:,.1f}"),
    ("floor ms/token", "decode_floor_ms", "{:.3f}"),
    ("MBU", "memory_bandwidth_utilization", "{:.0%}"),
    ("prefill MFU", "prefill_flops_utilization", "{:.0%}"),
    ("J/token", "joules_per_token", "{:.3f}"),
    ("idle share", "idle_energy_share", "{:.0%}"),
    ("perplexity", "perplexity", "{:,.3f}"),
    ("KL nats", "kl_divergence", "{:.5f}"),
    ("top-1", "top1_agreement", "{:.1%}"),
)


def variant_of(model: str, device: str, label: str, compiled: str = "none", tensor_parallel: int = 1) -> Variant:
    """Return the variant of a precision: a dtype, or a recipe of torchao with or without `@DTYPE`."""
    name, _, dtype = label.partition("@")
    compile_option = {"compile": compiled} if compiled != "none" else {}
    parallel_option = {"tensor_parallel": tensor_parallel} if tensor_parallel > 1 else {}
    options = tuple(sorted((compile_option | parallel_option).items()))
    if name in DTYPES:
        return Variant(model, device=device, dtype=name, options=options)
    computes = dtype or find_recipe("torch", name).computes
    return Variant(model, device=device, dtype=computes, quantization=name, options=options)


def row_of(done: Measurement | Failure) -> str:
    """Format one line of the table."""
    name = f"| {done.scenario.name} | "
    if isinstance(done, Failure):
        return name + f"{done.kind}: {done.reason} |" + " |" * (len(COLUMNS) - 1)
    cells = (form.format(done.metrics[key]) if key in done.metrics else "" for _, key, form in COLUMNS)
    return name + " | ".join(cells) + " |"


def trained(folder: str, device: str) -> str:
    """Train a model of a million weights on Python's language reference, so that its perplexity is meaningful."""
    task = TrainTask(corpus="pydoc", steps=600, eval_every=300, sample_tokens=0, output=folder)
    events: list[Event] = []
    scenario = Scenario("train", Variant("synthetic:1m", device=device), task)
    measure_group([scenario], EngineCache(load_variant), events.append)
    print("trained:", {k: round(v, 3) for k, v in events[-1].metrics.items() if "perplexity" in k})  # type: ignore[union-attr]
    return str(checkpoints(Path(folder))[-1])


@click.command(help=__doc__)
@click.option("--model", default="synthetic:llama-1b", show_default=True, help="trained: one that is trained first.")
@click.option("--device", default="cuda:0", show_default=True)
@click.option("--precisions", default=",".join(PRECISIONS), show_default=True)
@click.option("--compiled", default="none", show_default=True, help="The torch backend's option compile.")
@click.option("--tensor-parallel", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--rows", default="1", show_default=True, help="Rows of a batch, a comma list.")
@click.option("--seconds", type=float, default=6.0, show_default=True, help="Seconds of counted calls at most.")
@click.option("--quality/--no-quality", default=True, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("precision.json"))
def main(
    model: str,
    device: str,
    precisions: str,
    compiled: str,
    tensor_parallel: int,
    prompt_tokens: int,
    new_tokens: int,
    rows: str,
    seconds: float,
    quality: bool,
    output: Path,
) -> None:
    """Measure each precision, print the table, and save all measurements."""
    label: str
    if model == "trained":
        model = trained(str(output.with_suffix(".model")), device)
    check = QualityCheck(PerplexityTask(), variant_of(model, device, "float32"))
    repeat = RepeatPolicy(min_repeats=3, min_seconds=1.0, max_seconds=seconds)
    outcomes: list[Measurement | Failure] = []
    engines = EngineCache(load_variant)
    for label in precisions.split(","):
        start = time.perf_counter()
        scenarios = [
            Scenario(
                f"{label} x{count}" if rows != "1" else label,
                variant_of(model, device, label, compiled, tensor_parallel),
                GenerateTask((BASE_TEXT,) * int(count), prompt_tokens, new_tokens),
                repeat,
                baseline=label == "float32",
                quality=check if quality and number == 0 else None,
            )
            for number, count in enumerate(rows.split(","))
        ]
        events: list[Event] = []
        measure_group(scenarios, engines, events.append)
        ended = [
            event for event in events if isinstance(event, (Measurement, Failure)) and not isinstance(event, SoFar)
        ]
        outcomes += ended
        for done in ended:
            print(row_of(done), f"({time.perf_counter() - start:.0f} s)", flush=True)
            for line in getattr(done, "warnings", ()):
                print(f"    {line}", flush=True)
        output.write_text(json.dumps(list(map(to_json, outcomes))), encoding="utf-8")
    engines.close()
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    print(
        f"\n{model} on {name}, torch {torch.__version__}, {prompt_tokens} tokens in, {new_tokens} out, compile={compiled}"
    )
    print("| precision | " + " | ".join(title for title, _, _ in COLUMNS) + " |")
    print("| --- |" + " --- |" * len(COLUMNS))
    print("\n".join(row_of(done) for done in outcomes))
    draw(outcomes, name, output.with_suffix(".png"))


def draw(outcomes: list[Measurement | Failure], card: str, path: Path) -> None:
    """Draw the roofline of the measurements."""
    try:
        from llmtrack.report.plots.drawing import drawing, save
        from llmtrack.report.plots.roofline import roofline_plots
    except ImportError as error:
        print(f"no plot: {error}")
        return
    runs = Runs(
        Run(
            done.scenario.name,
            status=FINISHED,
            params={**done.facts, "scenario": done.scenario.name},
            metrics=done.metrics,
            environment={"gpu": card},
        )
        for done in outcomes
        if isinstance(done, Measurement)
    )
    with drawing():
        for figure in roofline_plots(runs).values():
            save(figure, path)


if __name__ == "__main__":
    main()
