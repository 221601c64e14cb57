"""Examine the machine and the installation: what works, what is missing, and how to get it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import EntryPoint

from llmtrack.convert.environment import BuildEnvironment, pinned_requirements
from llmtrack.engines.registry import BUILTIN, load_variant
from llmtrack.errors import ExtensionError, LlmtrackError, in_words
from llmtrack.host.entry_points import (
    ENGINE_POINTS,
    EXECUTOR_POINTS,
    EXPERIMENT_POINTS,
    RECIPE_POINTS,
    experiment_of,
    extensions,
    title_of,
    unusable,
)
from llmtrack.host.formatting import GIB, plural
from llmtrack.host.machine import cpu_flags, usable_cpus
from llmtrack.host.packages import (
    RUNTIMES,
    available,
    find_uv,
    install_command,
    installed_version,
    missing_modules,
    why_onnx_is_excluded,
)
from llmtrack.host.secrets import redact
from llmtrack.models.source import PACKAGED, PackagedModel
from llmtrack.quantize.recipe import extension_recipes, recipes
from llmtrack.report.terminal import hanging
from llmtrack.spec.scenario import Variant


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        state: `ok`, `missing` (optional) or `broken` (experiments will not run).
        remedy: what to do about it, or empty.
    """

    topic: str
    state: str
    text: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Check everything that llmtrack uses; never raises."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _machine,
        _torch,
        _gpu,
        _bfloat16,
        _transformers,
        _mlflow,
        _tracking,
        _spool,
        _backends,
        _onnx,
        *(partial(_runtime, backend) for backend in RUNTIMES),
        partial(_optional, "torchao", "recipes of the torch backend need it"),
        partial(_optional, "ray", "executor=ray needs it", ": executor=ray measures on a cluster"),
        _recipes,
        _int8,
        *(partial(_packaged_model, name, model) for name, model in PACKAGED.items()),
        *(partial(_extension, point) for group in _EXTENSIONS for point in extensions(group)),
        *(partial(_environment_manager, tool, use) for tool, use in MANAGERS.items()),
    ]
    return [_safely(check) for check in checks]


def render_findings(findings: list[Finding], style: str = "table", width: int | None = None) -> str:
    """Format findings as lines, wrapped to a width if given, or as JSON."""
    if style == "json":
        return json.dumps([asdict(finding) for finding in findings], indent=1) + "\n"
    lines = []
    for finding in findings:
        lines.append(hanging(f"{finding.state:<8}{finding.topic:<19} {finding.text}", width, 28))
        if finding.remedy:
            lines.append(hanging(f"{'':<28}-> {finding.remedy}", width, 31))
    return "\n".join(lines) + "\n"


TEST_MODEL = "synthetic:tiny"
"""Model on which an engine of a plug-in is tried."""

MANAGERS = {
    "local": "--env-manager local: needs this environment's bin folder first on PATH",
    "uv": "--env-manager uv: builds an environment from conda.yaml",
    "conda": "--env-manager conda (the default of mlflow run)",
}


def _safely(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "func", check).__name__.strip("_")
        return Finding(name, "broken", f"{type(error).__name__}: {error}", "reinstall: pip install llmtrack")


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} in {sys.prefix}")


def _machine() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{platform.system()} {platform.machine()}, {usable_cpus()} cores, {memory.total / GIB:.1f} GiB memory ({memory.available / GIB:.1f} GiB free)"
    return Finding("machine", "ok", text)


def _torch() -> Finding:
    import torch

    return Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def _gpu() -> Finding:
    from llmtrack.devices import KINDS, devices, name_of, on_gpu, platform_facts, unused_devices

    remedy = f"not used: {unused}" if (unused := "; ".join(unused_devices())) else ""
    gpus = [device for kind in KINDS for device in devices(kind) if on_gpu(device)]
    if not gpus:
        return Finding("gpu", "missing", "none that torch can use: everything runs on the CPU", remedy)
    rocm = platform_facts().get("rocm")
    untried = f" (ROCm {rocm}, never tried on hardware)" if rocm else ""
    return Finding("gpu", "ok", ", ".join(map(name_of, gpus)) + untried, remedy)


def _bfloat16() -> Finding:
    from llmtrack.devices import KINDS, emulates_bfloat16, supports_bfloat16

    kinds = [kind for kind in KINDS if supports_bfloat16(kind)]
    if not kinds:
        return Finding("bfloat16", "missing", "not supported here", "bfloat16 falls back, and its label says so")
    kinds = [f"{kind} (emulated, slow)" if emulates_bfloat16(kind) else kind for kind in kinds]
    return Finding("bfloat16", "ok", f"supported on {', '.join(kinds)}")


def _transformers() -> Finding:
    return Finding("transformers", "ok", importlib.import_module("transformers").__version__)


def _mlflow() -> Finding:
    return Finding("mlflow", "ok", importlib.import_module("mlflow").__version__)


def _tracking() -> Finding:
    from llmtrack.tracking.store import check_reachable, open_store
    from llmtrack.tracking.store_errors import UnreachableError, one_line_errors
    from llmtrack.tracking.uri import resolve_tracking_uri, sqlite_path
    from llmtrack.tracking.write import models, traces

    missing = ""
    try:
        uri = resolve_tracking_uri()
        path = sqlite_path(uri)
        # A missing database is created by the first run.
        if path is not None and not path.exists():
            check_reachable(uri)
        else:
            client = open_store(uri)
            with one_line_errors(client):
                missing = "; ".join(filter(None, (models.lacking(client), traces.lacking(client))))
    except UnreachableError as error:
        return Finding("tracking", "missing", str(error), "measurements are kept until `llmtrack sync` can send them")
    except LlmtrackError as error:
        return Finding("tracking", "broken", str(error))
    return Finding("tracking", "ok", redact(uri), missing)


def _spool() -> Finding:
    from llmtrack.tracking.write.spool import Spool
    from llmtrack.tracking.write.sync import describe_corrupt

    spool = Spool()
    try:
        spool.check_readable()
    except LlmtrackError as error:
        return Finding("spool", "broken", str(error))
    if spool.corrupt():
        text, _, remedy = describe_corrupt(spool).partition(": ")
        return Finding("spool", "broken", text, remedy)
    if waiting := len(spool.names()):
        return Finding("spool", "ok", f"{plural(waiting, 'record')} in {spool.folder}", "send them by `llmtrack sync`")
    return Finding("spool", "ok", f"nothing waits in {spool.folder}")


def _backends() -> Finding:
    # Those of other packages have lines of their own.
    return Finding("backends", "ok", ", ".join(filter(available, BUILTIN)))


def _onnx() -> Finding:
    if not (absent := missing_modules("onnx", "any")):
        packages = ("optimum", "optimum-onnx", "onnxruntime", "onnx", "onnx-ir")
        return Finding("onnx", "ok", ", ".join(f"{name} {installed_version(name)}" for name in packages))
    return Finding(
        "onnx", "missing", f"{', '.join(absent)} not installed{why_onnx_is_excluded()}", install_command("onnx")
    )


def _runtime(backend: str) -> Finding:
    """Check a backend with its own model converter, and the converter's environment."""
    if absent := missing_modules(backend):
        return Finding(backend, "missing", f"{', '.join(absent)} not installed", install_command(backend))
    if backend == "llamacpp":  # its converter runs in this environment
        return Finding(backend, "ok", _llamacpp())
    versions = ", ".join(f"{name} {installed_version(name)}" for name in RUNTIMES[backend])
    is_made = BuildEnvironment(backend, pinned_requirements(backend)).is_complete
    if is_made or find_uv():
        later = "" if is_made else " when a model is first converted"
        return Finding(backend, "ok", f"{versions}; its converter's environment is made{later}")
    return Finding(backend, "missing", f"{versions}; its converter's environment is made by uv", "pip install uv")


def _optional(package: str, if_missing: str, use: str = "") -> Finding:
    if version := installed_version(package):
        return Finding(package, "ok", f"{version}{use}")
    return Finding(package, "missing", if_missing, install_command(package))


def _llamacpp() -> str:
    from llmtrack.llamacpp.library import instruction_sets, library

    return f"{library().package} {library().version}, compiled for {', '.join(instruction_sets())}"


def _recipes() -> Finding:
    if labels := [recipe.label for recipe in recipes() if not recipe.lacking]:
        return Finding("recipes", "ok", ", ".join(labels))
    return Finding("recipes", "missing", "none can run without what is missing above")


def _int8() -> Finding:
    from llmtrack.quantize.int8 import instruction_set

    try:
        return Finding("int8", "ok", f"8-bit activations by {instruction_set(platform.machine(), cpu_flags())}")
    except LlmtrackError as error:
        return Finding("int8", "missing", str(error))


def _packaged_model(name: str, model: PackagedModel) -> Finding:
    from llmtrack.models.cache import cache_root

    topic = f"packaged:{name}"
    if any(path.is_dir() for path in (cache_root() / "models").glob(f"{name}-gguf*")):
        return Finding(topic, "ok", f"fetched and converted ({model.license})")
    remedy = f"the first run fetches {model.megabytes} MB with pip and converts it once"
    return Finding(topic, "missing", f"not fetched yet ({model.license})", remedy)


def _extension(point: EntryPoint) -> Finding:
    """Check a plug-in's entry point; an engine is tried on a tiny model."""
    topic = title_of(point)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # keep a package's output out of the findings
            return Finding(topic, "ok", _EXTENSIONS[point.group](point))
    except ExtensionError as error:
        return Finding(topic, "broken", in_words(error), "everything else works without it")
    except Exception as error:
        return Finding(topic, "missing", f"{TEST_MODEL} could not be loaded: {in_words(error)}")


def _try_engine(point: EntryPoint) -> str:
    if point.name in BUILTIN:
        raise unusable(point, "its name is that of a built-in backend, which is used in its place")
    engine = load_variant(Variant(TEST_MODEL, backend=point.name))
    engine.close()
    return f"{point.value} loads {TEST_MODEL}"


def _recipe_labels(point: EntryPoint) -> str:
    return ", ".join(recipe.label for recipe in extension_recipes(point)) or "none"


def _make_executor(point: EntryPoint) -> str:
    from llmtrack.run.main import extension_executor
    from llmtrack.run.settings import HereOptions

    extension_executor(point, HereOptions()).close()
    return f"{point.value} makes an executor"


_EXTENSIONS: dict[str, Callable[[EntryPoint], str]] = {
    ENGINE_POINTS: _try_engine,
    RECIPE_POINTS: _recipe_labels,
    EXECUTOR_POINTS: _make_executor,
    EXPERIMENT_POINTS: lambda point: str(experiment_of(point).DECLARED.question),
}


def _environment_manager(tool: str, use: str) -> Finding:
    if tool == "local":
        python = shutil.which("python")
        matches = python is not None and os.path.realpath(python) == os.path.realpath(sys.executable)
        remedy = "" if matches else "activate this environment before `mlflow run --env-manager local`"
        return Finding("mlflow run: local", "ok" if matches else "missing", f"python on PATH is {python}", remedy)
    if shutil.which(tool):
        return Finding(f"mlflow run: {tool}", "ok", use)
    remedy = "pip install uv" if tool == "uv" else "add --env-manager local (or uv) to `mlflow run`"
    return Finding(f"mlflow run: {tool}", "missing", f"{tool} is not on PATH", remedy)
