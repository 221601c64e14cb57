"""What the built-in backends can be told, beside what every variant says; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmtrack.errors import UsageError
from llmtrack.llamacpp.library import CACHE_TYPES, FLASH_ATTENTION
from llmtrack.onnx.names import GRAPH_OPTIMIZATIONS
from llmtrack.spec.options import Checked, Option

MOST_THREADS = 1_024
NO_COMPILE = "none"
COMPILE_MODES = (NO_COMPILE, "default", "max-autotune")
KV_CACHES = {"float32": "f32", "float16": "f16", "uint8": "u8"}
"""What keys and values are kept in: OpenVINO's name by ours."""


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Return the numbers of threads that are worth trying beside the default, which is one for each of the CPUs."""
    return tuple(dict.fromkeys(count for count in (cpus // 2, 1) if 0 < count < cpus))


@dataclass(frozen=True)
class ThreadOption(Checked):
    """How many threads compute."""

    threads: Annotated[
        int,
        Option(
            "Threads that compute one operation on the CPU; 0: as many as PyTorch takes.",
            min=0,
            max=MOST_THREADS,
            tries=thread_counts,
        ),
    ] = 0

    @property
    def used_threads(self) -> int:
        """So many threads compute."""
        import torch

        return self.threads or torch.get_num_threads()


@dataclass(frozen=True)
class CompileOption(Checked):
    """Whether decoding, scoring and training are compiled."""

    compile: Annotated[
        str,
        Option(
            "Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and "
            "training; torch backend only.",
            choices=COMPILE_MODES,
            # On a CPU compiling takes minutes, and one step's work hides what it saves.
            tries=lambda cpus: () if cpus else ("default",),
        ),
    ] = NO_COMPILE


@dataclass(frozen=True)
class DevicesOption(Checked):
    """Among how many devices a model is shared out, and how."""

    tensor_parallel: Annotated[
        int,
        Option(
            "GPUs, or processes of a CPU, that share each layer of the model; 1: none is shared; torch backend only.",
            min=1,
        ),
    ] = 1
    device_map: Annotated[
        str,
        Option(
            "auto: spread whole layers over all GPUs, which then compute one after another; torch backend only.",
            choices=("none", "auto"),
        ),
    ] = "none"


@dataclass(frozen=True)
class TorchOptions(ThreadOption, CompileOption, DevicesOption):
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
            choices=tuple(KV_CACHES),
            tries=lambda cpus: ("uint8",),
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
            choices=tuple(GRAPH_OPTIMIZATIONS),
        ),
    ] = "all"


@dataclass(frozen=True)
class LlamacppOptions(ThreadOption):
    """What the llamacpp backend can be told; defaults are llama.cpp's own."""

    ubatch: Annotated[int, Option("Prompt tokens that are computed at once at most.", min=1, max=65_536)] = 512
    flash_attention: Annotated[
        str, Option("Whether attention is computed by its fused kernel.", choices=tuple(FLASH_ATTENTION))
    ] = "auto"
    cache_type: Annotated[str, Option("What cached keys and values are stored as.", choices=tuple(CACHE_TYPES))] = "f16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_type == "q8_0" and self.flash_attention == "off":
            raise UsageError(
                "cache_type=q8_0 needs the fused kernel of attention: use flash_attention=on, or cache_type=f16"
            )
