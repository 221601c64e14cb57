"""Load a model folder for measuring: no custom code, plain kernels, greedy generation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError
from llmtrack.models.attention import implementation, use_whole_attention
from llmtrack.models.cached import forget_stray_windows, share_keys
from llmtrack.models.damaged import refuse_damaged
from llmtrack.models.decoder import refuse_adapter, refuse_incomplete, refuse_other_architectures
from llmtrack.models.digests import weights_in
from llmtrack.models.reasons import code_explained, explained, quantized_explained, tokenizer_explained
from llmtrack.models.stored import refuse_unscaled
from llmtrack.models.view import LOCAL, view

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHARDED, SPREAD = "sharded", "spread"


def load_folder(
    folder: Path, *, device: str, dtype: torch.dtype, placed: str = ""
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model folder offline and without running its code.

    Args:
        device: `cpu` or `cuda:N`.
        dtype: dtype of the weights.
        placed: as in `load_model`.

    Raises:
        ModelLoadError: weights or tokenizer are missing or incomplete, or its config is not a causal decoder's.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from llmtrack.host.transformers_compat import code_refused, restore_rope, tensor_parallel

    refuse_damaged(folder)
    refuse_adapter(folder)
    kind, files = weights_in(folder)
    seen = str(view(folder))
    with explained("config.json describes no model that transformers knows"), code_explained(folder):
        config = AutoConfig.from_pretrained(seen, **LOCAL)
        refuse_other_architectures(config)
        restore_rope(config)
        forget_stray_windows(config)
    shares: dict[str, Any] = {}
    if placed == SHARDED:
        refuse_unsharded(config)
        shares = tensor_parallel()
    elif placed == SPREAD:
        shares = {"device_map": "auto"}
    _use_plain_kernels(config, device)
    _forget_impossible_pad(config)
    with explained("its tokenizer cannot be read"), tokenizer_explained(folder), code_explained(folder):
        tokenizer = AutoTokenizer.from_pretrained(seen, **LOCAL)
    with explained("its weights cannot be read"):
        refuse_unscaled(files, config)
    with (
        explained("no model can be made of config.json and the weights"),
        quantized_explained(config),
        code_refused(),
    ):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            seen,
            config=config,
            dtype=dtype,
            use_safetensors=kind == "safetensors",
            weights_only=True,
            output_loading_info=True,
            **implementation(config),
            **shares,
            **LOCAL,
        )
    model, loading = loaded
    refuse_incomplete(model, loading, files)
    if placed == SPREAD:
        refuse_offloaded(getattr(model, "hf_device_map", {}), device)
    model = (model if placed else model.to(device)).eval()
    share_keys(model)
    use_whole_attention(model)
    return model, tokenizer


def refuse_offloaded(places: Mapping[str, Any], device: str) -> None:
    """Reject a model with parts offloaded from the cards: its speed would be meaningless.

    Raises:
        ModelLoadError: there are such parts.
    """
    beside = [name for name, place in places.items() if str(place) in ("cpu", "disk")]
    if beside and device.startswith("cuda"):
        raise ModelLoadError(
            f"{len(beside)} parts of it do not fit on the GPUs ({beside[0]} ...): use a smaller dtype, or more GPUs"
        )


def refuse_unsharded(config: Any) -> None:
    """Reject a model that cannot be sharded over the ranks of the open group.

    Raises:
        ModelLoadError: transformers has no plan for it, or its heads are not divisible by the number of ranks.
    """
    import torch.distributed as dist

    text, ranks = config.get_text_config(), dist.get_world_size()
    if not getattr(text, "base_model_tp_plan", None):
        raise ModelLoadError(f"transformers has no plan to shard {config.model_type}: use tensor_parallel=1")
    heads = {
        name: count
        for name in ("num_attention_heads", "num_key_value_heads")
        if (count := getattr(text, name, None)) and count % ranks
    }
    if heads:
        told = ", ".join(f"{name}={count}" for name, count in heads.items())
        raise ModelLoadError(f"{told} cannot be divided among {ranks}: use a tensor_parallel that divides them")


def _use_plain_kernels(config: Any, device: str) -> None:
    """Use plain PyTorch for a hybrid model's recurrence if its kernels are unavailable."""
    kernels = device.startswith("cuda") and all(map(find_spec, ("mamba_ssm", "causal_conv1d")))
    if getattr(config, "use_mamba_kernels", False) and not kernels:
        config.use_mamba_kernels = False


def _forget_impossible_pad(config: Any) -> None:
    """Remove a pad id beyond the vocabulary: pads are masked, and creating the model would fail."""
    for each in (config, config.get_text_config()):
        pad = getattr(each, "pad_token_id", None)
        if pad is not None and not 0 <= pad < getattr(each, "vocab_size", pad + 1):
            each.pad_token_id = None


def clean_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace a model's generation settings by greedy ones with only the special ids.

    A checkpoint's settings (sampling, repetition penalties, forced or suppressed tokens) would change the text or the
    time of a greedy measurement. Several end-of-sequence ids are kept, except those beyond the vocabulary.
    """
    from transformers import GenerationConfig

    rows = int(model.config.get_text_config().vocab_size)

    def known(name: str) -> int | list[int] | None:
        held = (getattr(holder, name, None) for holder in (model.generation_config, model.config, tokenizer))
        value: Any = next((each for each in held if each is not None), None)
        if isinstance(value, int):
            return value if 0 <= value < rows else None
        return [each for each in value or () if 0 <= each < rows] or None

    ids = {name: known(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(do_sample=False, **ids)
