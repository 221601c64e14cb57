"""Package a model folder as an MLflow model for `mlflow.pyfunc.load_model("runs:/RUN_ID/model")`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmtrack.host.packages import installed_version

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
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(DataType.string)]),
        params=ParamSchema([ParamSpec("max_new_tokens", DataType.long, 64)]),
    )
    kind = "onnx" if any(folder.glob("*.onnx")) else "torch"
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, ARTIFACT)
        # Give the requirements explicitly: MLflow would load the model in another process to infer them.
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=LOADER,
            data_path=str(folder),
            signature=signature,
            pip_requirements=_pinned(_REQUIREMENTS[kind]),
        )
        yield {
            f"{ARTIFACT}/{path.relative_to(target).as_posix()}": path
            for path in sorted(target.rglob("*"))
            if path.is_file() and not os.path.islink(path)
        }


def _pinned(packages: tuple[str, ...]) -> list[str]:
    known = ((name, installed_version(name)) for name in packages)
    # Drop local version suffixes such as +cpu, which others cannot install.
    return [f"{name}=={found.partition('+')[0]}" for name, found in known if found]
