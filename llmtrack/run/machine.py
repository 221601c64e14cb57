"""What the measuring side knows of its machine and installation: plain text facts, for tags and decisions."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version

from llmtrack.devices import supports_bfloat16

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "numpy",
    "optimum",
    "optimum-onnx",
    "onnxruntime",
)


def describe() -> dict[str, str]:
    """Return versions, thread counts, devices and their abilities.

    Keys: `version.PACKAGE`, `threads`, `interop_threads`, `devices` (comma list), `bfloat16` (the kinds of
    device that have it, comma list), `gpu`, `gpu_driver` and `cuda` where there is one.
    """
    import torch

    facts = {f"version.{name}": found for name in PACKAGES if (found := _version(name))}
    facts["threads"] = str(torch.get_num_threads())
    facts["interop_threads"] = str(torch.get_num_interop_threads())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            facts[name.lower()] = os.environ[name]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts["devices"] = ",".join(["cpu", *(f"cuda:{index}" for index in range(gpus))])
    facts["bfloat16"] = ",".join(kind for kind in ("cpu", "cuda") if supports_bfloat16(kind))
    if gpus:
        facts["gpu"] = torch.cuda.get_device_name(0)
        facts["gpu_count"] = str(gpus)
        facts["cuda"] = str(torch.version.cuda)
        facts["gpu_driver"] = _gpu_driver()
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu_driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
