"""What the built-in backends can be told, beside what every variant says; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmtrack.options import Checked, Option

MOST_THREADS = 1_024
COMPILE_MODES = ("none", "default", "max-autotune")


@dataclass(frozen=True)
class ThreadOption(Checked):
    """How many threads compute."""

    threads: Annotated[
        int,
        Option(
            "Threads that compute one operation on the CPU; 0: as many as PyTorch takes.",
            min=0,
            max=MOST_THREADS,
        ),
    ] = 0


@dataclass(frozen=True)
class CompileOption(Checked):
    """Whether decoding and training are compiled."""

    compile: Annotated[
        str,
        Option(
            "Compile decoding over a static KV cache (on a GPU one CUDA graph a step), and training; torch backend only.",
            choices=COMPILE_MODES,
        ),
    ] = "none"


@dataclass(frozen=True)
class TorchOptions(ThreadOption, CompileOption):
    """What the torch backend can be told."""


@dataclass(frozen=True)
class GenaiOptions(ThreadOption):
    """What the genai backend can be told."""


@dataclass(frozen=True)
class OpenvinoOptions(ThreadOption):
    """What the openvino backend can be told."""

    kv_cache: Annotated[
        str,
        Option(
            "What keys and values are kept in; OpenVINO's own default is uint8.",
            choices=("float32", "float16", "uint8"),
        ),
    ] = "float32"


@dataclass(frozen=True)
class OnnxOptions(ThreadOption):
    """What the onnx backend can be told."""

    provider: Annotated[str, Option("Execution provider of ONNX Runtime.", min=1)] = "auto"
    graph_optimization: Annotated[
        str,
        Option(
            "How much ONNX Runtime rewrites the graph on loading.",
            choices=("all", "extended", "basic", "none"),
        ),
    ] = "all"
