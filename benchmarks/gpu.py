"""How close does llmtrack come to the limits of a GPU: decoding, time stamps, scoring, perplexity, training?

    python -m benchmarks.gpu --part decode --part scoring --shape llama-1b --shape llama-8b --json gpu.json

Models are `synthetic:` presets in bfloat16, so that no file and no network is needed; MLflow is not used. Prints the card,
its measured copy bandwidth and matrix rate, and a Markdown table for each part. It runs on a CPU, too, slowly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import torch

from benchmarks.training_overhead import our_training, plain_training
from llmtrack.devices import resolve_device
from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch import pytorch
from llmtrack.engines.torch.fast import compiled
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.host.formatting import GIB
from llmtrack.measure.ceilings import copy_bandwidth, matrix_rate
from llmtrack.measure.formulas import decode_step_bytes, memory_bandwidth_utilization
from llmtrack.measure.roofline import scoring_work
from llmtrack.measure.timing import Arm, time_arms, trace_generate
from llmtrack.models.load import load_model
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.perplexity import score_rolling
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import RepeatPolicy, TrainTask
from llmtrack.tensors import likelihood
from llmtrack.train.session import Session, open_session
from llmtrack.worker.perplexity import warm_up

PROMPT, NEW = 128, 128
PARTS = ("decode", "stamps", "scoring", "perplexity", "training")

SIZES = (8, 64, None)
"""Batch sizes of perplexity; None: automatic."""

Row = dict[str, Any]


def engines(shape: str, device: str, modes: Iterable[str]) -> dict[str, TorchEngine]:
    """Return one model as an engine for each compilation mode, with shared weights."""
    loaded = load_model(f"synthetic:{shape}", device=device, dtype=torch.bfloat16)
    return {mode: TorchEngine(loaded.model, loaded.tokenizer, compile=mode) for mode in modes}


def request_of(rows: int) -> GenerateRequest:
    """Return a request of random prompts, the same in each run."""
    random = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 256, (rows, PROMPT), generator=random).tolist()
    return GenerateRequest(tuple(map(tuple, ids)), NEW)


def decode(shape: str, device: str, modes: tuple[str, ...], sizes: tuple[int, ...], profile: bool) -> list[Row]:
    """Time generation eagerly and compiled; for one row also the agreement with a whole pass."""
    table: list[dict[str, Any]] = []
    for mode, engine in engines(shape, device, modes).items():
        for size in sizes:
            request = request_of(size)
            repeats = 3 if mode == "none" else 7
            policy = RepeatPolicy(min_repeats=repeats, min_seconds=0, max_repeats=repeats)
            ((_, timing),) = time_arms(engine, {"": Arm((request,), policy)})
            if isinstance(timing, Exception):
                raise timing
            step_s = timing["inter_token_latency_ms"] / 1000
            read = decode_step_bytes(engine.info.step_weight_bytes, engine.info.cache, (PROMPT,) * size, NEW)
            table.append(
                {
                    "shape": shape,
                    "compile": mode,
                    "step": engine.info.facts["decode_step"],
                    "batch": size,
                    "tokens/s": timing["tokens_per_sec"],
                    "ITL ms": 1000 * step_s,
                    "TTFT ms": timing["time_to_first_token_ms"],
                    "MBU %": 100 * memory_bandwidth_utilization(read, step_s, copy_bandwidth(device)),
                    "peak GiB": (timing.peak_memory_bytes or 0) / GIB,
                    "compile s": timing.metrics.get("compile_time_s", 0.0),
                    "top-1 %": 100 * agreement(engine, request, timing.new_ids),
                }
            )
            print(table[-1], timing.warnings, flush=True)
            if profile and mode != "none" and size == 1:
                table[-1]["kernels"] = kernels(engine, request)
    return table


def agreement(engine: TorchEngine, request: GenerateRequest, new_ids: tuple[tuple[int, ...], ...]) -> float:
    """Return the share of the first row's tokens that a whole, eager pass over the same row would also choose."""
    prompt, generated = request.prompt_ids[0], new_ids[0]
    logits = engine.next_token_logits([*prompt, *generated])[len(prompt) - 1 : -1].clone()
    end = engine.info.special_tokens.eos_id
    if end is not None:
        logits[:, end] = -torch.inf
    return float((logits.argmax(dim=-1) == torch.tensor(generated)).double().mean())


def kernels(engine: TorchEngine, request: GenerateRequest) -> list[tuple[str, float, float]]:
    """Return the kernels of a decode step: name, calls, and total microseconds."""
    from torch.profiler import ProfilerActivity, profile

    decoding: Any = engine._decoding
    loop = decoding._loops[compiled.Shape.of(request)]
    ids = torch.tensor(request.prompt_ids, device=engine.info.device)
    with torch.inference_mode():
        loop.begin(ids, torch.ones_like(ids))
        loop.prefill()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(10):
                loop.step()
            torch.cuda.synchronize()
    per_step = [
        (kernel.key[:90], kernel.count / 10, kernel.self_device_time_total / 10) for kernel in profiled.key_averages()
    ]
    per_step.sort(key=lambda kernel: -kernel[2])
    for name, count, microseconds in per_step[:14]:
        print(f"    {microseconds:8.1f} us  {count:5.1f} x  {name}", flush=True)
    return per_step[:20]


class NoStamps(Stamps):
    """Record no time stamps, as the reference for their cost."""

    def step(self) -> None:
        """Report a step."""
        self._on_step()

    def wait(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    @property
    def seconds(self) -> None:
        """None: the host's stamps are used."""
        return None


class WaitingStamps(NoStamps):
    """Synchronize at some steps and stamp with the host's clock; synchronizing at each step slows a call down."""

    waits: Container[int] = range(NEW)

    def step(self) -> None:
        """Synchronize if the step is selected, and report it."""
        self._number = getattr(self, "_number", -1) + 1
        if self._number in self.waits:
            torch.cuda.synchronize()
        self._on_step()


class WaitingOnce(WaitingStamps):
    """Synchronize only at the first and the last token, without delaying either."""

    waits = (0, NEW - 1)


def stamps(shape: str, device: str) -> list[Row]:
    """Time the same compiled calls with each kind of time stamps, in turn."""
    engine = engines(shape, device, ["default"])["default"]
    request = request_of(1)
    engine.prepare(request)
    ways = {
        "none": NoStamps,
        "events": Stamps,
        "the host waits for the first and the last": WaitingOnce,
        "the host waits for each": WaitingStamps,
    }
    calls: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(30):
        for name, way in ways.items():
            with patch.object(pytorch, "Stamps", way):
                trace, _ = trace_generate(engine, request)
            gap = (trace.stamps[-1] - trace.stamps[0]) / (len(trace.stamps) - 1)
            calls[name].append((trace.end - trace.start, trace.stamps[0] - trace.start, gap))
    unstamped = [whole for whole, _, _ in calls["none"]]
    rows = []
    for name, of_way in calls.items():
        wholes, firsts, gaps = zip(*of_way, strict=True)
        rows.append(
            {
                "shape": shape,
                "stamps": name,
                "whole ms": 1000 * median(wholes),
                "over none %": 100 * (median(whole / none for whole, none in zip(wholes, unstamped, strict=True)) - 1),
                "TTFT ms": None if name == "none" else 1000 * median(firsts),
                "ITL ms": None if name == "none" else 1000 * median(gaps),
            }
        )
    return rows


def scoring(shape: str, device: str) -> list[Row]:
    """Time scoring 8 x 2,048 tokens: as is, by the plain formula in chunks of 64 MiB as on a CPU, and compiled."""
    both = engines(shape, device, ["none", "default"])
    ids = torch.randint(0, 256, (8, 2049), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    operations = scoring_work(both["none"].info, [[2048] * 8]).operations or 0.0
    table = []
    ways = {"as it is": "none", "plain, 64 MiB": "none", "layers compiled": "default"}
    for name, mode in ways.items():
        engine = both[mode]
        with plain_scoring() if name.startswith("plain") else nullcontext():
            warm_up(engine)
            engine.score(ids, mask)
            engine.reset_peak_memory()
            seconds = []
            for _ in range(5):
                engine.synchronize()
                start = time.perf_counter()
                sums, counts = engine.score(ids, mask)
                engine.synchronize()
                seconds.append(time.perf_counter() - start)
        rate = operations / median(seconds)
        table.append(
            {
                "shape": shape,
                "scored": name,
                "s": median(seconds),
                "tokens/s": int(counts.sum()) / median(seconds),
                "TFLOP/s": rate / 1e12,
                "of the rate %": 100 * rate / matrix_rate(device, "bfloat16"),
                "peak GiB": (engine.peak_memory_bytes() or 0) / GIB,
                "nats/token": float(sums.sum()) / int(counts.sum()),
            }
        )
        print(table[-1], flush=True)
    return table


@contextmanager
def plain_scoring() -> Iterator[None]:
    """Score on a GPU as on a CPU."""

    def small_chunks(vocab_size: int, *unused: Any) -> int:
        return max(1, likelihood.CHUNK_BYTES // (8 * vocab_size))

    def plain(device_type: str) -> Callable[..., torch.Tensor]:
        return likelihood.token_nll

    with patch.object(likelihood, "chunk_tokens", small_chunks), patch.object(likelihood, "_nll_on", plain):
        yield


def perplexity(shape: str, device: str, modes: tuple[str, ...]) -> list[Row]:
    """Time a rolling perplexity of pydoc, including tokenization, at fixed batch sizes and the automatic one."""
    texts = load_corpus("pydoc").texts
    table = []
    for mode, engine in engines(shape, device, modes).items():
        warm_up(engine)
        for window, size in product((512, 2048), SIZES):
            score_rolling(engine, texts[:4], max_length=window, batch_size=4)
            engine.reset_peak_memory()
            start = time.perf_counter()
            quality = score_rolling(engine, texts, max_length=window, bos_rule="model", batch_size=size)
            seconds = time.perf_counter() - start
            table.append(
                {
                    "shape": shape,
                    "compile": mode,
                    "window": window,
                    "batch size": "auto" if size is None else str(size),
                    "rows": max(map(len, quality.tokens_read)),
                    "tokens/s": quality.tokens_scored / seconds,
                    "peak GiB": (engine.peak_memory_bytes() or 0) / GIB,
                    "nats/token": quality.loss,
                }
            )
            print(table[-1], flush=True)
    return table


def training(shape: str, device: str, modes: tuple[str, ...], rounds: int = 2) -> list[Row]:
    """Time training steps in turn with a plain loop, compiled as asked for."""
    task = TrainTask(
        steps=12,
        eval_every=12,
        batch_size=8,
        sequence_length=1024,
        validation_tokens=64,
        sample_tokens=0,
        log_checkpoint="none",
        start="weights",
    )
    variant = Variant(f"synthetic:{shape}", device=device, dtype="bfloat16")
    session = open_session(variant, task)
    counts = session.flops_per_token(), session.counted_flops_per_token()
    del session
    table = []
    for mode in modes:
        compiled_variant = variant if mode == "none" else replace(variant, options=(("compile", mode),))
        seconds: dict[str, list[float]] = {"plain loop": [], "llmtrack": []}
        for _ in range(rounds):
            for name, side in (("plain loop", plain_training), ("llmtrack", our_training)):
                # A checkpoint of this size takes longer than the steps.
                with patch.object(Session, "save", lambda session: None):
                    seconds[name].append(side(compiled_variant, task))
                torch.compiler.reset()
        tokens = (task.steps - 1) * task.batch_size * task.sequence_length
        for name, times in seconds.items():
            rate = tokens / median(times)
            by_formula, counted = (100 * rate * flops / matrix_rate(device, "bfloat16") for flops in counts)
            table.append(
                {
                    "shape": shape,
                    "compile": mode,
                    "loop": name,
                    "tokens/s": rate,
                    "x plain": median(seconds["plain loop"]) / median(times),
                    "MFU % by formula": by_formula,
                    "MFU % as counted": counted,
                    "all tokens/s": [tokens / duration for duration in times],
                }
            )
            print(table[-1], flush=True)
    return table


def markdown(rows: list[Row]) -> str:
    """Return rows as a Markdown table; what is no text or number is left out."""
    names = [name for name, value in rows[0].items() if not isinstance(value, (list, dict))]
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    lines += [f"| {' | '.join(_text(row.get(name)) for name in names)} |" for row in rows]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


@click.command(help=__doc__)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, show_default=True)
@click.option("--shape", "shapes", multiple=True, default=("llama-1b",), show_default=True)
@click.option("--mode", "modes", multiple=True, default=("none", "default"), show_default=True)
@click.option("--batch", "sizes", multiple=True, type=int, default=(1, 8, 32), show_default=True)
@click.option("--profile/--no-profile", default=False, help="Also tell the kernels of a decode step.")
@click.option("--device", default="auto", show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where all numbers go.")
def main(
    parts: tuple[str, ...],
    shapes: tuple[str, ...],
    modes: tuple[str, ...],
    sizes: tuple[int, ...],
    profile: bool,
    device: str,
    path: Path | None,
) -> None:
    """Run the parts and print their tables."""
    place = resolve_device(device)
    card = torch.cuda.get_device_name(place) if place != "cpu" else "CPU"
    facts = {
        "card": card,
        "torch": torch.__version__,
        "copy TB/s": copy_bandwidth(place) / 1e12,
        "bfloat16 TFLOP/s": matrix_rate(place, "bfloat16") / 1e12,
    }
    print(facts, flush=True)
    run: dict[str, Callable[[str], list[Row]]] = {
        "decode": lambda shape: decode(shape, place, modes, sizes, profile),
        "stamps": lambda shape: stamps(shape, place),
        "scoring": lambda shape: scoring(shape, place),
        "perplexity": lambda shape: perplexity(shape, place, modes),
        "training": lambda shape: training(shape, place, modes),
    }
    tables: dict[str, list[Row]] = {}
    for part in parts:
        for shape in shapes:
            tables[f"{part} {shape}"] = run[part](shape)
            if place != "cpu":
                torch.cuda.empty_cache()
            print(f"\n### {part}, {shape}\n\n{markdown(tables[f'{part} {shape}'])}\n", flush=True)
            if path is not None:
                path.write_text(json.dumps({**facts, **tables}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
