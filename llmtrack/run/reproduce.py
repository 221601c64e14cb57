"""Generate Python code and a command that run a model as in a tracked run or variant."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmtrack.engines.registry import backend_of
from llmtrack.errors import LlmtrackError
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads."""

PROMPT = "The first thing to find out is"

_FIELDS = ("backend", "device", "dtype", "quantization")


def generate_program(variant: Variant, task: GenerateTask | None = None) -> str:
    """Return a program that loads a variant and generates text."""
    arguments = {name: getattr(variant, name) for name in _FIELDS if getattr(variant, name) != getattr(Variant, name)}
    if variant.revision:
        arguments["revision"] = variant.revision
    arguments |= dict(variant.options)
    loaded = ", ".join([repr(variant.model), *(f"{name}={value!r}" for name, value in arguments.items())])
    call = _call(task)
    settings = "".join(f", {name}={value!r}" for name, value in call.items())
    tokens, rows = (task.max_new_tokens, task.batch_size or 1) if task else (GenerateTask.max_new_tokens, 1)
    generate = (
        f"print(llmtrack.generate_text(engine, {PROMPT!r}, max_new_tokens={tokens}{settings}))"
        if rows == 1 and "pad_to_multiple" not in call
        else f"print(*llmtrack.generate_texts(engine, [{PROMPT!r}] * {rows}, max_new_tokens={tokens}{settings}), sep='\\n')"
    )
    return f"import llmtrack\n\nengine = llmtrack.load_engine({loaded})\n{generate}\n"


def generate_command(variant: Variant, task: GenerateTask | None = None) -> str:
    """Return a command that loads a variant and generates text."""
    words = ["llmtrack", "generate", "--model", variant.model]
    for name in ("revision", *_FIELDS):
        if getattr(variant, name) != getattr(Variant, name):
            words += [f"--{name}", str(getattr(variant, name))]
    for key, value in variant.options:
        words += ["--option", f"{key}={value}"]
    call = _call(task)
    if "use_cache" in call:
        words += ["--no-cache"]
    if "pad_to_multiple" in call:
        words += ["--pad-to-multiple", str(call["pad_to_multiple"])]
    words += ["--max-new-tokens", str((task or GenerateTask).max_new_tokens)]
    words += [PROMPT] * ((task.batch_size or 1) if task else 1)
    return shlex.join(words)


def variant_of(run: Run) -> Variant:
    """Return the variant that a tracked run measured: with the loaded model for a list of candidates, and the options
    used.

    Raises:
        LlmtrackError: its backend or recipe no longer exists.
    """
    backend = run.text("backend") or Variant.backend
    quantization = run.text("quantization") or NONE
    configs = [
        backend_of(backend).options,
        *(() if quantization == NONE else find_recipe(backend, quantization).option_types),
    ]
    options: dict[str, Scalar] = {}
    for parameter in (parameter for config in configs for parameter in parameters(config)):
        if run.has(parameter.name):
            value = parameter.accept(parameter.kind(run.params[parameter.name]))
            if value != parameter.default:
                options[parameter.name] = value
    return Variant(
        model=run.text("model_id") or run.text("model") or Variant.model,
        revision=run.text("revision") or None,
        backend=backend,
        device=run.text("device_requested") or Variant.device,
        dtype=run.text("dtype_requested") or Variant.dtype,
        quantization=quantization,
        options=tuple(sorted(options.items())),
    )


def as_loaded(variant: Variant, facts: Mapping[str, Any]) -> Variant:
    """Replace a variant's candidate list by the model that was loaded, according to the facts of the measurement."""
    model, revision = facts.get("model_id"), facts.get("revision")
    return replace(variant, model=str(model or variant.model), revision=str(revision) if revision else variant.revision)


def measured_comment(variant: Variant, tags: Mapping[str, str]) -> str:
    """Return a comment line that identifies the measured model: name, revision and weights digest."""
    identity = (variant.model, variant.revision and f"revision {variant.revision}", tags.get("weights_digest"))
    return f"# measured with {', '.join(filter(None, identity))}\n"


def run_settings(run: Run) -> list[str]:
    """Return further settings of a tracked run: weights digest, threads, environment variables."""
    params = [("weights", "env.weights_digest"), ("threads", "threads")]
    lines = [f"{title}: {text}" for title, key in params if (text := run.text(key))]
    return lines + [f"{name}={value}" for name, value in environment_of(run).items()]


def how_to_run(runs: Runs, run_id: str | None) -> tuple[list[str], list[str]]:
    """Return the command and program that run a model as one of some runs did, and its settings; empty for None."""
    if run_id is None:
        return [], []
    best = next(run for run in runs if run.run_id == run_id)
    return reproduce_command(best), run_settings(best)


def environment_of(run: Run) -> dict[str, str]:
    """Return the environment variables of a tracked run that affect its speed."""
    variables = {name: run.text(f"env.{name.lower()}") for name in VARIABLES}
    return {name: value for name, value in variables.items() if value}


def reproduce_command(run: Run) -> list[str]:
    """Return the command and the Python code that run a model as a tracked run did; empty if unknown."""
    if not run.has("max_new_tokens"):
        return []
    try:
        variant = variant_of(run)
    except (LlmtrackError, ValueError):
        return []
    cache = not run.has("use_cache") or bool(run.params["use_cache"])
    task = GenerateTask(
        (),
        max_new_tokens=int(run.params["max_new_tokens"]),
        use_cache=cache,
        batch_size=int(run.number("batch_size") or 1),
        pad_to_multiple=int(run.number("pad_to_multiple") or 1),
    )
    variables = environment_of(run)
    command = generate_command(variant, task)
    lines = generate_program(variant, task).splitlines()
    if variables:
        command = f"{shlex.join(['env', *(f'{name}={value}' for name, value in variables.items())])} {command}"
        lines = ["import os", "", f"os.environ.update({variables!r})", *lines]
    return [command, *lines]


def _call(task: GenerateTask | None) -> dict[str, Scalar]:
    if task is None:
        return {}
    settings: dict[str, Scalar] = {} if task.use_cache else {"use_cache": False}
    return settings | ({} if task.pad_to_multiple == 1 else {"pad_to_multiple": task.pad_to_multiple})
