"""The search space of a machine: everything installed with its declared options, and what is left out and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from llmtrack.devices import choose_dtype, kind_of, on_gpu
from llmtrack.engines.registry import backend_of, backends
from llmtrack.errors import LlmtrackError, UsageError, in_words
from llmtrack.host.packages import missing_modules
from llmtrack.measure.gpus import capability
from llmtrack.quantize.recipe import recipes
from llmtrack.run.study.plan import device_of
from llmtrack.spec.options import Option, parameters
from llmtrack.spec.parameter import NONE, Parameter, format_value
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.task import GenerateTask

BASELINE = ("torch", "float32")
BATCH_SIZES = (1, 2, 4)

FEW_TOKENS = 8
"""Most new tokens for which decoding without a cache, which recomputes each token, is worth trying."""

# Objectives that benefit from batching, and those for which a cache may cost more than it saves.
BATCHED = ("tokens_per_sec", "latency_per_sample_s", "joules_per_token")
CACHED = ("tokens_per_sec", "latency_per_sample_s", "joules_per_token", "time_to_first_token_ms")
# Objectives that only depend on the loaded model, not on calls or speed.
OF_MODEL = ("model_size_mib",)
# Call settings; the options of a backend and its recipes are added to them.
CALL = ("batch_size", "use_cache", "pad_to_multiple")
KNOWN = ("backend", "precision", "recipe", *CALL)


@dataclass(frozen=True)
class Candidate:
    """A way to run the model.

    Attributes:
        name: names its differences from the baseline.
        changes: number of settings that differ from the baseline's.
    """

    name: str
    variant: Variant
    task: GenerateTask
    changes: int


@dataclass(frozen=True)
class Space:
    """All candidates.

    Attributes:
        candidates: simplest first, starting with the baseline.
        left_out: what cannot run here, and why.
    """

    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str], ...]


def parse_space(text: str) -> dict[str, tuple[str, ...]]:
    """Parse a restriction of the space: `backend=onnx threads=1,2` as patterns by name.

    Raises:
        UsageError: it is invalid.
    """
    narrowed: dict[str, tuple[str, ...]] = {}
    for word in re.split(r"[\s;]+", text.strip()):
        name, equals, values = word.partition("=")
        patterns = tuple(filter(None, values.split(",")))
        if word and not (name and equals and patterns):
            raise UsageError(
                f"invalid space {word!r}: use NAME=VALUE,VALUE NAME=VALUE, such as 'backend=onnx threads=1,2'"
            )
        if name in narrowed:
            raise UsageError(f"space {name} is given twice: write {name}=VALUE,VALUE")
        if word:
            narrowed[name] = patterns
    return narrowed


def make_space(
    variant: Variant,
    task: GenerateTask,
    objective: str,
    machine: Mapping[str, str],
    narrowed: Mapping[str, Sequence[str]] | None = None,
) -> Space:
    """Return the candidates worth trying for an objective.

    Args:
        variant: the model, the device, and options common to all candidates, such as a number of threads.
        objective: metric to optimize; determines which call settings matter.
        narrowed: patterns by name, from `parse_space`; the values of a setting without a fixed list of them.

    Raises:
        UsageError: a name is unknown, or only the baseline is left.
    """
    narrowed = dict(narrowed or {})
    device = device_of(variant.device, machine)
    cpus = int(machine.get("threads") or 1) if device == "cpu" else 0
    calls = list(_calls(task, objective, narrowed))
    backend, precision = BASELINE
    simplest = replace(variant, backend=backend, dtype=precision, quantization=NONE)
    candidates = [Candidate("-".join(BASELINE), simplest, replace(task, batch_size=1), 0)]
    left_out: list[tuple[str, str]] = []
    used = {*KNOWN}
    offered: dict[str, set[str]] = {"backend": {*backends()}, "precision": set(), "recipe": {NONE}}
    known = {*KNOWN, *(name for recipe in recipes() for name in _names(*recipe.option_types))}
    for backend in backends():
        try:
            declaration = backend_of(backend)
        except LlmtrackError as error:
            left_out.append((backend, in_words(error)))
            continue
        known |= _names(declaration.options)
        if not _fits(backend, narrowed.get("backend")):
            continue
        unquantized = replace(variant, backend=backend, quantization=NONE)
        for loaded, label, exact, takes in _loaded(unquantized, declaration.precisions, device, machine, left_out):
            offered["precision" if loaded.quantization == NONE else "recipe"].add(label)
            if not _is_requested(label, loaded.quantization == NONE, narrowed):
                continue
            used |= _names(declaration.options, *takes)
            combinations = _options(
                (declaration.options, *takes), cpus, narrowed, objective not in OF_MODEL, dict(variant.options)
            )
            for (changed, option_labels), (call, call_labels) in product(combinations, calls):
                if (backend, label) == BASELINE and not option_labels and not call_labels:
                    continue
                options = tuple(sorted({**dict(variant.options), **dict(changed)}.items()))
                name = "-".join([backend, label, *option_labels, *call_labels])
                changes = exact + len(option_labels) + len(call_labels)
                candidates.append(Candidate(name, replace(loaded, options=options), call, changes))
    _check_restriction(narrowed, known, used, offered, left_out)
    if len(candidates) == 1:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out)
        raise UsageError(f"nothing but the baseline is left of the space: widen it{f' ({reasons})' if reasons else ''}")
    candidates.sort(key=lambda candidate: candidate.changes)
    return Space(tuple(candidates), tuple(left_out))


def _check_restriction(
    narrowed: Mapping[str, Sequence[str]],
    known: set[str],
    used: set[str],
    offered: Mapping[str, set[str]],
    left_out: Sequence[tuple[str, str]],
) -> None:
    """Reject a restriction of the space with unknown or unused names, or patterns that match nothing.

    Args:
        used: names of the settings of the remaining backends and recipes.
    """
    if unknown := sorted(set(narrowed) - known):
        raise UsageError(f"space has no {', '.join(unknown)}: use {', '.join((*KNOWN, *sorted(known - {*KNOWN})))}")
    for name, values in offered.items():
        for pattern in narrowed.get(name, ()):
            if any(_fits(value, (pattern,)) for value in values):
                continue
            others = [other for other in offered if any(_fits(value, (pattern,)) for value in offered[other])]
            instead = f"{others[0]}={pattern}" if others else ", ".join(sorted(values)) or "another backend"
            reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out if pattern in name)
            raise UsageError(
                f"space {name}={pattern} is nothing that can run here{f' ({reasons})' if reasons else ''}: use {instead}"
            )
    if idle := sorted(set(narrowed) - used):
        raise UsageError(f"space {', '.join(idle)} would change nothing: no way that is left takes it")


def _is_requested(label: str, is_precision: bool, narrowed: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a precision or recipe is requested: not if only the other kind is named.

    `recipe=none` means any precision.
    """
    precisions, recipes = narrowed.get("precision"), narrowed.get("recipe")
    if not is_precision:
        return _fits(label, recipes) and (recipes is not None or precisions is None)
    if precisions is None:
        return _fits(NONE, recipes)
    return _fits(label, precisions)


def _loaded(
    variant: Variant,
    precisions: Sequence[str],
    device: str,
    machine: Mapping[str, str],
    left_out: list[tuple[str, str]],
) -> Iterator[tuple[Variant, str, int, tuple[type, ...]]]:
    """Yield a backend's models with their labels, distances from the baseline, and recipe options."""
    backend = variant.backend
    has_bfloat16 = kind_of(device) in machine.get("bfloat16", "").split(",")
    if missing := missing_modules(backend):
        left_out.append((backend, f"{', '.join(missing)} is not installed"))
        return
    distance = int(backend != BASELINE[0])
    for precision in precisions:
        used, label = choose_dtype(precision, device, has_bfloat16)
        if used != precision:
            left_out.append((f"{backend}/{precision}", f"it would be {label}"))
        else:
            yield replace(variant, dtype=precision), precision, distance + int(precision != BASELINE[1]), ()
    for recipe in recipes():
        if recipe.backend != backend:
            continue
        if missing := recipe.lacking:
            left_out.append((recipe.label, f"{', '.join(missing)} is not installed"))
        elif recipe.capability is not None and not (on_gpu(device) and (capability() or (0, 0)) >= recipe.capability):
            left_out.append(
                (
                    recipe.label,
                    f"it needs a GPU of compute capability {'.'.join(map(str, recipe.capability))}",
                )
            )
        else:
            quantized = replace(variant, quantization=recipe.name, dtype=recipe.computes)
            yield quantized, recipe.name, distance + 1, recipe.option_types
            # On a GPU, unquantized layers are fast only in 16 bits.
            if on_gpu(device) and has_bfloat16 and recipe.computes == "float32" and "bfloat16" in precisions:
                label = f"{recipe.name}@bfloat16"
                yield replace(quantized, dtype="bfloat16"), label, distance + 2, recipe.option_types


def _options(
    options: Sequence[type],
    cpus: int,
    narrowed: Mapping[str, Sequence[str]],
    timed: bool,
    common: Mapping[str, Scalar],
) -> Iterator[tuple[tuple[tuple[str, Scalar], ...], tuple[str, ...]]]:
    """Yield option combinations of a backend and its recipe with their labels, leaving out defaults.

    Args:
        cpus: number of CPUs used; 0 for another device.
        timed: whether to vary options that only affect speed.
    """
    axes: list[list[tuple[str, Any, bool]]] = []
    for parameter in (parameter for config in options for parameter in parameters(config)):
        standard = common.get(parameter.name, parameter.default)
        tries = parameter.option.tries if timed and parameter.name not in common else None
        values = [standard, *(value for value in (tries(cpus) if tries else ()) if value != standard)]
        if parameter.name in narrowed:
            values = [parameter.parse(text) for text in narrowed[parameter.name]]
        axes.append([(parameter.name, value, value == standard) for value in values])
    for chosen in product(*axes):
        changed = tuple((name, value) for name, value, is_default in chosen if not is_default)
        yield changed, tuple(f"{name}_{format_value(value)}" for name, value in changed)


def _calls(
    task: GenerateTask, objective: str, narrowed: Mapping[str, Sequence[str]]
) -> Iterator[tuple[GenerateTask, tuple[str, ...]]]:
    """Yield the calls that do the work, with their differences."""
    rows = len(task.prompts)
    sizes = _numbers("batch_size", narrowed) or (
        [size for size in BATCH_SIZES if size <= rows] if objective in BATCHED else [1]
    )
    caching = (True, False) if objective in CACHED and task.max_new_tokens <= FEW_TOKENS else (True,)
    use_cache = Parameter("space use_cache", bool, False, False, True, Option(""))
    caches = [use_cache.parse(value) for value in narrowed.get("use_cache", map(format_value, caching))]
    pads = _numbers("pad_to_multiple", narrowed) or [1]
    for size, cache, pad in product(sizes, caches, pads):
        changed = {
            f"batch_{size}": size != 1,
            "no_cache": not cache,
            f"pad_to_{pad}": pad != 1,
        }
        call = replace(task, batch_size=size, use_cache=cache, pad_to_multiple=pad)
        yield call, tuple(name for name, is_one in changed.items() if is_one)


def _names(*configs: type) -> set[str]:
    return {parameter.name for config in configs for parameter in parameters(config)}


def rows_of_work(objective: str, narrowed: Mapping[str, Sequence[str]]) -> int:
    """Return the number of prompts: enough for the largest batch to try."""
    return max(_numbers("batch_size", narrowed) or (BATCH_SIZES if objective in BATCHED else [1]))


def _numbers(name: str, narrowed: Mapping[str, Sequence[str]]) -> list[int]:
    values = narrowed.get(name, ())
    if not all(value.isdecimal() and int(value) > 0 for value in values):
        raise UsageError(f"space {name}={','.join(values)} is not possible: use whole numbers of 1 or more")
    return [int(value) for value in values]


def _fits(value: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(value, pattern) for pattern in patterns)
