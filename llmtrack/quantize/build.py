"""Build exported and quantized models once, in a separate process, and cache them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmtrack.errors import LlmtrackError, MissingDependencyError, ScenarioError
from llmtrack.host.isolated import run_isolated
from llmtrack.host.packages import INSTALL_ONNX, installed_version, missing_modules, not_installed
from llmtrack.host.transformers_compat import import_transformers
from llmtrack.models.cache import MANIFEST, build_once, read_manifest, safe_name
from llmtrack.models.disk import caused_by_full_disk, disk_full_error
from llmtrack.models.durations import timed_step
from llmtrack.models.load import ModelIdentity
from llmtrack.models.load_errors import reason_of
from llmtrack.models.safe_view import LOCAL
from llmtrack.onnx.lengths import PARITY_FACTS
from llmtrack.onnx.session import MODEL_FILE
from llmtrack.quality.corpora import load_corpus
from llmtrack.quantize.options import CalibrationText
from llmtrack.quantize.recipe import Job, find_recipe
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.spec.serialization import digest

CALIBRATION = CalibrationText.calibration
"""Default calibration text: the corpus that experiments do not score by default."""

EXPORT_VERSION = 4
"""Increment when the result of an export changes, to invalidate the cache."""

EXPORT_FACTS = (*PARITY_FACTS, "onnx_attention")
"""Manifest entries of an export, and of models derived from it, that describe its parity with PyTorch."""

_PACKAGES = (
    "optimum",
    "optimum-onnx",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "tokenizers",
    "torch",
    "transformers",
)


def onnx_folder(variant: Variant, identity: ModelIdentity) -> Path:
    """Return the folder of a variant's exported, possibly quantized, model; build it if necessary.

    Raises:
        MissingDependencyError: the onnx extra is not installed.
        ScenarioError: the model cannot be exported or quantized.
        UsageError: an option is invalid.
        ModelLoadError: the cache cannot be used, or its disk is full.
    """
    require_onnx(variant.quantization)
    name = safe_name(Path(identity.source.location).name)
    # All that the model's output depends on, and the versions that export it.
    key = digest(
        [identity.digests.tags, EXPORT_VERSION, {package: installed_version(package) for package in _PACKAGES}]
    )
    spec, revision = identity.source.spec, variant.revision if identity.source.kind == "hub" else None

    def export(folder: Path) -> dict[str, Any]:
        return build_isolated("exporting to ONNX", spec, folder, _export, spec, revision, str(folder))

    if variant.quantization == NONE:
        return build_once(f"{name}-onnx-{key}", export, identity.weights.stored())
    recipe = find_recipe(variant.backend, variant.quantization)
    options = recipe.resolve_options(variant.options)
    corpus = str(variant.option("calibration", CALIBRATION)) if recipe.calibrated else NONE
    text = load_corpus(corpus).digest if recipe.calibrated else NONE
    base = build_once(f"{name}-onnx-{key}", export, identity.weights.stored())
    key = digest([key, recipe.name, recipe.version, options, text])

    def quantize(folder: Path) -> dict[str, Any]:
        arguments = recipe.backend, recipe.name, options, corpus, str(base), str(folder)
        return build_isolated(f"quantizing by {recipe.name}", spec, folder, _quantize, *arguments)

    return build_once(f"{name}-onnx-{recipe.name}-{key}", quantize, identity.weights.stored(recipe.bits))


def require_onnx(quantization: str) -> None:
    """Check that the modules of the onnx backend are installed.

    Raises:
        MissingDependencyError: one is missing.
    """
    needs = () if quantization == NONE else find_recipe("onnx", quantization).needs
    if missing := [*missing_modules("onnx"), *not_installed(needs)]:
        raise MissingDependencyError(f"the onnx backend needs {', '.join(missing)}: {INSTALL_ONNX}")


def _export(spec: str, revision: str | None, folder: str) -> dict[str, Any]:
    import_transformers()
    from llmtrack.onnx.export import export

    return export(spec, revision, Path(folder))


def _quantize(
    backend: str, name: str, options: dict[str, Scalar], corpus: str, source: str, folder: str
) -> dict[str, Any]:
    recipe = find_recipe(backend, name)
    target = Path(folder)
    facts: dict[str, Scalar] = {}
    rows: tuple[tuple[int, ...], ...] = ()
    text_warnings: tuple[str, ...] = ()
    if recipe.calibrated:
        # Weight-only recipes need neither transformers nor PyTorch, which take seconds to import.
        import_transformers()
        from transformers import AutoTokenizer

        from llmtrack.quantize.calibration import calibrate

        tokenizer = AutoTokenizer.from_pretrained(source, **LOCAL)
        calibration = calibrate(load_corpus(corpus), tokenizer, int(options["calibration_tokens"]))
        rows, text_warnings = calibration.rows, calibration.warnings
        facts = {"calibration": calibration.corpus, "calibration_digest": calibration.digest}
    built = recipe.run(Job(Path(source), target, options, rows))
    for path in Path(source).iterdir():
        if not path.name.startswith((MODEL_FILE, MANIFEST)) and not (target / path.name).exists():
            shutil.copy2(path, target)
    exported = {key: value for key, value in read_manifest(Path(source)).items() if key in EXPORT_FACTS}
    findings = asdict(built) | {"facts": {**facts, **built.facts}}
    return {**exported, "recipe": findings, "options": options, "warnings": list(text_warnings)}


def build_isolated(
    action: str, model: str, folder: Path, work: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any]:
    """Fill a folder in a separate process, which isolates memory and crashes.

    `work` is a function of a module that the child process can import, and returns facts for the manifest; action and
    model are for messages.

    Raises:
        ScenarioError: it failed.
        OSError: the disk is full.
    """
    started = time.perf_counter()
    with timed_step(action, model):
        facts = run_isolated(action, _guarded, str(folder), action, work, *arguments)
    return {**facts, "build_seconds": time.perf_counter() - started}


def _guarded(folder: str, action: str, work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Do the work silently; convert any error to a one-line message."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The result goes into the manifest, so it must be JSON.
            return json.loads(json.dumps(work(*arguments), default=float))
    except LlmtrackError as error:
        if caused_by_full_disk(error, Path(folder)):
            raise disk_full_error() from error
        raise
    except MemoryError as error:
        raise ScenarioError(f"{action}: out of memory", kind="out_of_memory") from error
    except Exception as error:
        if caused_by_full_disk(error, Path(folder)):
            raise disk_full_error() from error
        raise ScenarioError(f"{action} failed: {reason_of(error)[:300]}", kind="unsupported") from error
