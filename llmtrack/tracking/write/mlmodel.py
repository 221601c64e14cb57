"""Package a model folder as an MLflow model for `mlflow.pyfunc.load_model("runs:/RUN_ID/model")`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.host.packages import installed_version
from llmtrack.spec.pointer import Pointer

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

ARTIFACT = "model"
LOADER = "llmtrack.serving"

# Requirements by kind of model folder, in addition to llmtrack.
_REQUIREMENTS = {
    "onnx": ("onnxruntime", "onnx", "transformers", "torch", "optimum-onnx"),
    "torch": ("transformers", "torch", "safetensors"),
}


@contextmanager
def mlflow_model(folder: Path) -> Iterator[Mapping[str, Path]]:
    """Yield the files of an MLflow model by artifact path, valid within the context.

    Its `predict` takes prompts (a list, or a table of one column) and returns the continuations; `max_new_tokens` is a
    parameter.

    Args:
        folder: model and tokenizer; weights as ONNX or safetensors.
    """
    import mlflow.pyfunc

    kind = "onnx" if any(folder.glob("*.onnx")) else "torch"
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, ARTIFACT)
        # Give the requirements explicitly: MLflow would load the model in another process to infer them.
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=LOADER,
            data_path=str(folder),
            signature=_signature(),
            pip_requirements=_pinned(_REQUIREMENTS[kind]),
        )
        yield {
            f"{ARTIFACT}/{path.relative_to(target).as_posix()}": path
            for path in sorted(target.rglob("*"))
            if path.is_file() and not os.path.islink(path)
        }


def save_pointer(target: Path, pointer: Pointer) -> None:
    """Write an MLflow model that points at a model, with an example of its input."""
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "pointer")
        data.mkdir()
        pointer.write(data)
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=LOADER,
            data_path=str(data),
            signature=_signature(),
            input_example=["Once upon a time"],
            pip_requirements=_pinned(_REQUIREMENTS.get(pointer.variant.backend, _REQUIREMENTS["torch"])),
        )


def _signature() -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(DataType.string)]),
        params=ParamSchema([ParamSpec("max_new_tokens", DataType.long, 64)]),
    )


def _pinned(packages: tuple[str, ...]) -> list[str]:
    known = ((name, installed_version(name)) for name in packages)
    # Drop local version suffixes such as +cpu, which others cannot install.
    return [f"{name}=={found.partition('+')[0]}" for name, found in known if found]
