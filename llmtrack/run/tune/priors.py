"""Prior knowledge of a candidate: how it computes, what must be built before loading it, and earlier runs."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from llmtrack.decide.predictor import COMPILED, EAGER, EMULATED, Prior
from llmtrack.engines.options import NO_COMPILE, CompileOption, ThreadOption
from llmtrack.errors import LlmtrackError
from llmtrack.host.machine import cpu_flags
from llmtrack.metrics import metric
from llmtrack.models import durations
from llmtrack.models.cache import cache_root, safe_name
from llmtrack.quantize.recipe import recipes
from llmtrack.run.reproduce import variant_of
from llmtrack.run.tune.search_space import Candidate
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Variant
from llmtrack.tracked.run import Run
from llmtrack.tracking.read.query import tracked_runs

# Default seconds of each step, for SmolLM2 135M on two cores; durations recorded on this machine take precedence.
_EXPORTS = {"onnx": 60.0}
_ENVIRONMENTS = {"genai": 60.0, "openvino": 120.0}
_CONVERSIONS = {"genai": 60.0, "openvino": 120.0, "llamacpp": 20.0}
_RECIPES = {
    "int4-gptq": 240.0,
    "int8-static": 150.0,
    "int8-mixed": 120.0,
    "int4-mixed": 240.0,
    "int8-dynamic": 110.0,
    "int8-per-token": 60.0,
    "int4-hqq": 20.0,
}
_QUICK_RECIPE = 15.0
_USUAL_BYTES = 540e6
_COMPILES = 45.0
_LOADS = 2.0
# Without one of these CPU features (x86, Arm), PyTorch emulates bfloat16.
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
_BITS = re.compile(r"(\d+)")
# Options tracked as resolved, not as requested.
_RESOLVED = ("provider", "threads")
# As long as ceilings are cached; limits how much of a large store is read.
_SINCE = "30d"
Key = tuple[object, ...]


def prior_of(candidate: Candidate, cpus: int, measured: Mapping[str, float]) -> Prior:
    """Return the prior knowledge of a candidate.

    Args:
        cpus: number of CPUs used; 0 for a GPU.
    """
    variant, task = candidate.variant, candidate.task
    compiled = variant.option("compile", NO_COMPILE) != NO_COMPILE
    kind = variant.backend
    if kind == "torch":
        emulated = cpus and variant.dtype == "bfloat16" and not _BFLOAT16 & cpu_flags()
        kind = EMULATED if emulated else COMPILED if compiled else EAGER
    threads = int(variant.option("threads", 0) or 0)
    label, arithmetic = variant.dtype, variant.dtype
    key = (variant.backend, variant.quantization)
    if recipe := next((recipe for recipe in recipes() if (recipe.backend, recipe.name) == key), None):
        label, arithmetic = recipe.dtype, recipe.arithmetic or variant.dtype
    size = measured.get("model_size_mib", 0.0) * 2**20 / _USUAL_BYTES or 1.0
    return Prior(
        kind,
        numbers_of(variant),
        bits_of(label),
        bits_of(arithmetic),
        min(1.0, threads / cpus) if threads and cpus else 1.0,
        task.batch_size or 1,
        task.use_cache,
        {step: seconds for step, seconds, is_built in _builds(variant, size) if not is_built},
        measured.get("load_time_s", _LOADS),
        _COMPILES if compiled else 0.0,
    )


def numbers_of(variant: Variant) -> str:
    """Identify a variant's numerical results: threads and compilation change only the order of summation."""
    speed_only = {parameter.name for config in (ThreadOption, CompileOption) for parameter in parameters(config)}
    options = [f"{name}={value}" for name, value in variant.options if name not in speed_only]
    return "/".join([variant.backend, variant.dtype, variant.quantization, *options])


def uncompiled(variant: Variant) -> Variant:
    """Return the numerically equal variant without compilation."""
    options = tuple((name, value) for name, value in variant.options if name != "compile")
    return replace(variant, options=options)


def bits_of(label: str) -> float:
    """Parse the bits of a dtype label: 8 for `int8`, 4 for `Q4_K_M`; 32 if it has none."""
    match = _BITS.search(label)
    return float(match[1]) if match else 32.0


def earlier_ratios(
    candidates: Sequence[Candidate],
    baseline: str,
    objective: str,
    environment_id: str,
    cpus: int,
    tracking_uri: str,
) -> dict[str, float]:
    """Return each candidate's median ratio to the baseline over earlier studies, of any model.

    An unreadable store yields nothing: the search continues without.

    Args:
        environment_id: hardware and versions, which must match.
        cpus: number of CPUs used by default; 0 for a GPU.
    """
    try:
        runs = tracked_runs(
            tags={"llmtrack.environment_id": environment_id},
            status="FINISHED",
            since=_SINCE,
            tracking_uri=tracking_uri,
        )
    except LlmtrackError:
        return {}
    keys = {candidate.name: _key_of(candidate, cpus) for candidate in candidates}
    values: dict[Key, dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs.measured(objective):
        if (key := _tracked_key(run, cpus)) is not None:
            values[run.study_id, run.text("model_id"), run.workload_id][key].append(run.metrics[objective])
    sign = 1.0 if metric(objective).better == "higher" else -1.0
    ratios: dict[str, list[float]] = defaultdict(list)
    for study in values.values():
        if not (base_samples := study.get(keys[baseline])):
            continue
        for name, key in keys.items():
            if name != baseline and (samples := study.get(key)):
                ratios[name].append((median(samples) / median(base_samples)) ** sign)
    return {name: median(values) for name, values in ratios.items() if math.isfinite(median(values))}


def _builds(variant: Variant, size: float) -> Iterator[tuple[str, float, bool]]:
    """Yield each build step of a variant: its name in the cache, predicted seconds, and whether it is done.

    Args:
        size: bytes of the weights, relative to the model of the default durations.
    """
    backend, recipe = variant.backend, variant.quantization
    label = recipe if recipe != NONE else variant.dtype
    stem = safe_name(re.split(r"[:/\\]", variant.model.split(",")[0].rstrip("/\\"))[-1])
    if backend in _EXPORTS:
        yield _step("exporting to ONNX", _EXPORTS[backend] * size, _is_cached(rf"{stem}.*-{backend}-[0-9a-f]+"))
        if recipe != NONE:
            seconds = _RECIPES.get(recipe, _QUICK_RECIPE) * size
            yield _step(f"quantizing by {recipe}", seconds, _is_cached(rf"{stem}.*-{backend}-{recipe}-[0-9a-f]+"))
    elif backend in _CONVERSIONS:
        if backend in _ENVIRONMENTS:
            is_built = any((cache_root() / "environments").glob(f"{backend}-*/llmtrack-made"))
            yield _step(f"making the build environment of {backend}", _ENVIRONMENTS[backend], is_built)
        step = f"converting to {label} by the tool of {backend}"
        yield _step(step, _CONVERSIONS[backend] * size, _is_cached(rf"{stem}.*-{backend}-{label}-[0-9a-f]+"))


def _step(name: str, default: float, is_built: bool) -> tuple[str, float, bool]:
    recorded = durations.last_seconds(name)
    return name, default if recorded is None else recorded, is_built


def _is_cached(pattern: str) -> bool:
    """Return whether the cache has an entry matching a pattern, even of an older version: its load time will show."""
    folder = cache_root() / "models"
    expression = re.compile(f"(?i){pattern}")
    return folder.is_dir() and any(expression.fullmatch(entry.name) for entry in folder.iterdir())


def _key_of(candidate: Candidate, cpus: int) -> Key:
    task = candidate.task
    return _key(candidate.variant, task.batch_size or 1, task.use_cache, cpus)


def _tracked_key(run: Run, cpus: int) -> Key | None:
    try:
        variant = variant_of(run)
    except (LlmtrackError, ValueError):
        return None
    use_cache = not run.has("use_cache") or bool(run.params["use_cache"])
    return _key(variant, int(run.number("batch_size") or 1), use_cache, cpus)


def _key(variant: Variant, rows: int, use_cache: bool, cpus: int) -> Key:
    options: Mapping[str, object] = dict(variant.options)
    threads = int(str(options.get("threads") or 0)) or cpus
    other_options = tuple(sorted((name, value) for name, value in options.items() if name not in _RESOLVED))
    return (variant.backend, variant.dtype, variant.quantization, other_options, threads, rows, use_cache)
