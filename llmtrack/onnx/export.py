"""Export a model to an ONNX decoder with a KV cache through Optimum, and check it against PyTorch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from llmtrack.errors import ScenarioError, in_words, is_out_of_memory
from llmtrack.measure.finite import NON_FINITE
from llmtrack.models.load import LoadedModel, load_model
from llmtrack.models.load_errors import conversion_failure, reason_of
from llmtrack.onnx import graph
from llmtrack.onnx.attention import fuse_attention, rotary_of
from llmtrack.onnx.lengths import LENGTH_DEPENDENT_ROPE, STATIC_ROPE, Parity, rope_kind
from llmtrack.onnx.parity import parity, refuse_non_finite
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder

TASK = "text-generation-with-past"


def export(spec: str, revision: str | None, folder: Path) -> dict[str, Any]:
    """Export a model to an empty folder: `model.onnx`, config and tokenizer.

    Returns:
        Facts for the folder's manifest: the difference of its logits from PyTorch's, and the attention's name.

    Raises:
        ModelLoadError: the model cannot be loaded.
        ScenarioError: its logits are not finite, it cannot be exported, or the export does not match PyTorch.
    """
    loaded = load_model(spec, device="cpu", dtype=torch.float32, revision=revision)
    _export(loaded, folder)
    loaded.tokenizer.save_pretrained(str(folder))
    path = folder / MODEL_FILE
    rotary = rotary_of(loaded.model)
    exported = graph.load(path)
    graph.plain_products(exported)
    result: Parity | str = ""
    for fused in (True, False):  # the fastest first
        model = graph.copy_of(exported)
        if fused and (rotary is None or not fuse_attention(model, rotary)):
            continue
        graph.trim_logits(model)
        graph.declare_products(model)
        graph.save(model, path)
        result = _check(loaded, path)
        if isinstance(result, Parity) and result.holds:
            return {**result.facts, "onnx_attention": "GroupQueryAttention" if fused else "as exported"}
    raise ScenarioError(
        f"the ONNX export of {loaded.model_id} does not match PyTorch ({result}): it is not used, take backend=torch",
        kind="unsupported",
    )


def supports(architecture: str) -> bool:
    """Check that Optimum has an exporter for decoders of a `model_type`."""
    import optimum.exporters.onnx.model_configs  # noqa: F401 - registers them
    from optimum.exporters.tasks import TasksManager

    try:
        return TASK in TasksManager.get_supported_tasks_for_model_type(
            architecture, "onnx", library_name="transformers"
        )
    except KeyError:
        return False


def _check(loaded: LoadedModel, path: Path) -> Parity | str:
    """Return the parity of a graph with PyTorch, or why it cannot be run: another kind of attention may still work."""
    try:
        results = [parity(loaded, OnnxDecoder(path, spin=False))]
        # Quantized models derived from it have another graph for rows without pads.
        if results[0].holds and (decoder := OnnxDecoder(path, floats=True, spin=False)).has_unpadded:
            results.append(parity(loaded, decoder, pads=False))
        return max(results, key=lambda result: (not result.holds, result.share))
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, ScenarioError) and error.kind == NON_FINITE:
            raise
        return f"it cannot be run: {reason_of(error)[:300]}"


def _export(loaded: LoadedModel, folder: Path) -> None:
    try:
        refuse_non_finite(loaded)
        _trace(loaded, folder)
    except (OSError, ScenarioError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        architecture = loaded.model.config.get_text_config().model_type
        reason = f"{type(error).__name__}: {in_words(error)}"
        raise ScenarioError(
            conversion_failure("optimum's exporter", architecture, reason, "use backend=torch"), kind="unsupported"
        ) from error


def _trace(loaded: LoadedModel, folder: Path) -> None:
    from optimum.exporters.onnx import onnx_export_from_model

    with traceable_rope(loaded.model), warnings.catch_warnings():
        # Warnings about untraced branches and negative indices: `parity` checks afterwards that the graph holds for
        # other inputs than the traced ones.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", "Exporting aten::index operator", UserWarning)
        onnx_export_from_model(loaded.model, str(folder), task=TASK, do_validation=False)


@contextmanager
def traceable_rope(model: Any) -> Iterator[None]:
    """Compute length-dependent rotary frequencies inside the graph while a model is traced.

    transformers chooses them in Python, so a trace would keep those of the traced length.

    Raises:
        ScenarioError: rotary positions of an unsupported kind.
    """
    kind = rope_kind(model.config.get_text_config().to_dict())
    changed = [module for module in model.modules() if _depends_on_length(module)]
    if kind not in STATIC_ROPE | LENGTH_DEPENDENT_ROPE or (kind in LENGTH_DEPENDENT_ROPE and not changed):
        raise ScenarioError(
            f"{type(model).__name__} cannot be exported to ONNX: its {kind} rotary positions depend on the length in a "
            "way that cannot be traced (use backend=torch)",
            kind="unsupported",
        )
    for module in changed:
        module.forward = _traceable(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward
            module.register_buffer("inv_freq", module.original_inv_freq, persistent=False)


def _depends_on_length(module: Any) -> bool:
    kind = getattr(module, "rope_type", None)
    return kind in LENGTH_DEPENDENT_ROPE and hasattr(module, "rope_init_fn")


def _traceable(module: Any) -> Callable[..., Any]:
    frequencies = _by_length(module)
    rotate = inspect.unwrap(type(module).forward)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        length = position_ids.max() + 1
        module.register_buffer("inv_freq", frequencies(length), persistent=False)
        return rotate(module, x, position_ids)

    return forward


def _by_length(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the frequencies as a function of the length, using tensor operations only."""
    config, frequencies, device = module.config, module.rope_init_fn, module.inv_freq.device
    if module.rope_type != "longrope":
        return lambda length: frequencies(config, device, seq_len=length)[0]
    context = config.max_position_embeddings
    threshold = getattr(config, "original_max_position_embeddings", context)
    short, long = (frequencies(config, device, seq_len=length)[0] for length in (threshold, threshold + 1))
    return lambda length: torch.where(length > threshold, long, short)
