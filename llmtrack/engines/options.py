"""Options of the built-in backends; cheap to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from llmtrack.errors import UsageError
from llmtrack.llamacpp.library import CACHE_TYPES, FLASH_ATTENTION
from llmtrack.onnx.names import GRAPH_OPTIMIZATIONS
from llmtrack.spec.options import Checked, Option, chosen
from llmtrack.spec.scenario import Variant

MOST_THREADS = 1_024
NO_COMPILE = "none"
COMPILE_MODES = (NO_COMPILE, "default", "max-autotune")
KV_CACHES = {"float32": "f32", "float16": "f16", "uint8": "u8"}
"""Types of cached keys and values: OpenVINO's names by ours."""


def thread_counts(cpus: int) -> tuple[int, ...]:
    """Return the thread counts to try beside the default of one per CPU."""
    return tuple(dict.fromkeys(count for count in (cpus // 2, 1) if 0 < count < cpus))


@dataclass(frozen=True)
class ThreadOption(Checked):
    """Number of threads."""

    threads: Annotated[
        int, Option("Intra-op threads on the CPU; 0: PyTorch's default.", min=0, max=MOST_THREADS, tries=thread_counts)
    ] = 0

    @property
    def used_threads(self) -> int:
        """Effective number of threads."""
        import torch

        return self.threads or torch.get_num_threads()


@dataclass(frozen=True)
class CompileOption(Checked):
    """Compilation of decoding, scoring and training."""

    compile: Annotated[
        str,
        Option(
            "Compile decoding over a static KV cache (on a GPU one CUDA graph a step), the layers when a GPU scores, and "
            "training; torch backend only.",
            choices=COMPILE_MODES,
            # On a CPU, compiling takes minutes and saves little compared with the work of a step.
            tries=lambda cpus: () if cpus else ("default",),
        ),
    ] = NO_COMPILE


@dataclass(frozen=True)
class DevicesOption(Checked):
    """Distribution of a model over devices."""

    tensor_parallel: Annotated[
        int,
        Option(
            "GPUs, or CPU processes, that share each layer (tensor parallelism); 1: no sharing; torch backend only.",
            min=1,
            max=MOST_THREADS,
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
    """Options of the torch backend."""


def refuse_combined(variant: Variant, names: Sequence[str], option: str, remedy: str) -> None:
    """Reject a variant that sets one of the named options, which another option excludes."""
    settings = {"quantization": variant.quantization} | dict(variant.options)
    for name in names:
        if settings.get(name, "none") != "none":
            raise UsageError(f"{option} cannot be combined with {name}: use {name}=none, or {remedy}")


def loaded_as(variant: Variant) -> Variant:
    """Return a variant without the options that are set for each call; variants equal in the rest share a loaded model.

    PyTorch sets its threads for each call. The sessions of other backends, code compiled for a CPU and processes that
    share a model have a fixed number of them.
    """
    if variant.backend != "torch":
        return variant
    options = chosen(TorchOptions, variant.options)
    if (options.compile, options.tensor_parallel, options.device_map) != (NO_COMPILE, 1, "none"):
        return variant
    return replace(variant, options=tuple((name, value) for name, value in variant.options if name != "threads"))


@dataclass(frozen=True)
class GenaiOptions(ThreadOption):
    """Options of the genai backend."""


@dataclass(frozen=True)
class OpenvinoOptions(ThreadOption):
    """Options of the openvino backend."""

    kv_cache: Annotated[
        str,
        Option(
            "Type of cached keys and values; OpenVINO's own default is uint8.",
            choices=tuple(KV_CACHES),
            tries=lambda cpus: ("uint8",),
        ),
    ] = "float32"


@dataclass(frozen=True)
class OnnxOptions(ThreadOption):
    """Options of the onnx backend."""

    provider: Annotated[str, Option("Execution provider of ONNX Runtime.", min=1)] = "auto"
    graph_optimization: Annotated[
        str, Option("How much ONNX Runtime rewrites the graph on loading.", choices=tuple(GRAPH_OPTIMIZATIONS))
    ] = "all"


@dataclass(frozen=True)
class LlamacppOptions(ThreadOption):
    """Options of the llamacpp backend; the defaults are llama.cpp's."""

    ubatch: Annotated[int, Option("Maximum prompt tokens per pass.", min=1, max=65_536)] = 512
    flash_attention: Annotated[
        str, Option("Whether to use the fused attention kernel.", choices=tuple(FLASH_ATTENTION))
    ] = "auto"
    cache_type: Annotated[str, Option("Type of cached keys and values.", choices=tuple(CACHE_TYPES))] = "f16"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_type == "q8_0" and self.flash_attention == "off":
            raise UsageError(
                "cache_type=q8_0 needs the fused kernel of attention: use flash_attention=on, or cache_type=f16"
            )
