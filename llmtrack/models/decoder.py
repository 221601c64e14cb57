"""Check that a folder holds a causal decoder, that all of it was loaded, and that no token attends to later ones.

Each `refuse_...` raises a ModelLoadError with cause and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError
from llmtrack.host.transformers_compat import portable_rope
from llmtrack.models.positions import context_length, first_position, forward_inputs
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.models.weights import read_tensors, weight_files

if TYPE_CHECKING:
    import torch

ADAPTER = "adapter_config.json"

# Task suffixes of transformers architectures that predict the next token.
_NEXT_TOKEN = ("CausalLM", "ConditionalGeneration")
_TASK = re.compile(r"For([A-Z]\w+)$")
_BODY = re.compile(r"(?<!Head)(?<!Heads)Model$")
_ANGLES = 0.02
"""Relative difference of rotary frequencies beyond rounding to 16 bits."""

# Tensors that do not affect the output: masks, angle tables and version numbers of older versions, and heads for
# multi-token prediction.
_HARMLESS = re.compile(
    r"(^|\.)(inv_freq|original_inv_freq|masked_bias|causal_mask|position_ids|token_type_ids|cos_cached|sin_cached|version)$"
    r"|(^|\.)mtp\b"
)

_PROBE_TOKENS, _PROBES = 16, 3
_CHANGE, _CHANGE_16_BIT = 1e-4, 2e-2
"""Change of earlier logits, relative to their standard deviation, beyond rounding: most causal models do not change at
all, mixtures of experts by 1e-6, random bidirectional models by 2e-3 or more."""


def refuse_adapter(folder: Path) -> None:
    """Reject a folder with an unmerged adapter, since results could not be attributed."""
    if (folder / ADAPTER).is_file() or next(folder.glob("adapter_model.*"), None) is not None:
        location = "beside its base " if weight_files(folder)[1] else ""
        raise ModelLoadError(
            f"{folder} holds an adapter (LoRA) {location}that is not merged: merge it (merge_and_unload of peft) and give "
            "that folder, or give the base model alone"
        )


def refuse_other_architectures(config: Any) -> None:
    """Reject encoder-decoders and models saved for another task, by their config."""
    names = ", ".join(getattr(config, "architectures", None) or ()) or config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{names} is an encoder-decoder: choose a decoder-only model")
    for name in getattr(config, "architectures", None) or ():
        task = _TASK.search(name)
        if task and not task[1].startswith(_NEXT_TOKEN):
            raise ModelLoadError(
                f"it is a {name}, which was not trained to predict the next token: choose a causal language model"
            )


def refuse_incomplete(model: Any, loading: dict[str, Any], files: Sequence[Path]) -> None:
    """Reject missing or unused weights (by the report of `from_pretrained`), another head, or other rotary angles."""
    name = type(model).__name__
    # transformers initializes missing weights randomly and only logs it.
    if missing := sorted(loading["missing_keys"]):
        raise ModelLoadError(
            f"the checkpoint lacks {len(missing)} weights of {name} ({missing[0]} ...): "
            "it is incomplete, or not a causal language model"
        )
    unexpected = loading["unexpected_keys"]
    named = {key for key in unexpected if key.endswith(".bias")}
    biases = dict(read_tensors(files, named)) if named else {}
    unused = sorted(key for key in unexpected if not is_harmless(key, model, biases.get(key)))
    if unused:
        raise ModelLoadError(
            f"the checkpoint holds {len(unused)} weights that {name} does not use ({unused[0]} ...): config.json does not "
            "describe it (number of layers, biases), or it was trained for another task"
        )
    if other := _other_head(model, files):
        raise ModelLoadError(
            f"config.json ties the head to the embedding, and the checkpoint holds another head ({other}), which "
            "would be ignored: set tie_word_embeddings to false"
        )
    if other := _other_angles(model, files):
        raise ModelLoadError(
            f"the checkpoint's rotary frequencies ({other}) differ from those of config.json: correct its rope_theta"
        )


def headless_warning(config: Any) -> tuple[str, ...]:
    """Warn if the config says that only a model's body was saved."""
    bodies = [name for name in getattr(config, "architectures", None) or () if _BODY.search(name)]
    return tuple(
        f"config.json names {name}, a body without a head: its embedding serves as one, as if it had been trained to "
        "predict the next token"
        for name in bodies[:1]
    )


def is_harmless(key: str, model: Any, tensor: torch.Tensor | None = None) -> bool:
    """Return whether an unused checkpoint tensor is not a weight, by its name and, if given, its shape."""
    if _HARMLESS.search(key) or _predicts_ahead(key, model.config):
        return True
    # The causal mask of old checkpoints is called `bias`, on a module that is not a layer.
    path, _, last = key.rpartition(".")
    mask = last == "bias" and bool(re.search(r"att(n|ention)$", path)) and (tensor is None or tensor.ndim > 1)
    return mask and any(
        next(module.children(), None) is not None
        for name, module in model.named_modules()
        if name and (name == path or name.endswith(f".{path}") or path.endswith(f".{name}"))
    )


def _predicts_ahead(key: str, config: Any) -> bool:
    """Return whether a tensor belongs to extra layers for multi-token prediction."""
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", key)
    ahead = getattr(config, "num_nextn_predict_layers", None) or 0
    layers = getattr(config, "num_hidden_layers", None)
    return layer is not None and layers is not None and layers <= int(layer[1]) < layers + ahead


def _other_angles(model: Any, files: Sequence[Path]) -> str | None:
    """Return the name of rotary frequencies in the files that differ from the model's, or None.

    Scaled ones are not compared: some versions saved them before scaling, others after.
    """
    import torch

    config = model.config.get_text_config()
    buffers = [buffer for name, buffer in model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    if len(buffers) != 1 or portable_rope(config.to_dict()).get("rope_scaling"):
        return None
    frequencies = buffers[0].float().cpu()
    for name, tensor in read_tensors(files, lambda name: name.endswith("rotary_emb.inv_freq")):
        if tensor.shape == frequencies.shape and not torch.allclose(
            tensor.float(), frequencies, rtol=_ANGLES, atol=1e-6
        ):
            return name
    return None


def _other_head(model: Any, files: Sequence[Path]) -> str | None:
    """Return the name of a head in the files that differs from the tied embedding, or None."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None or getattr(head, "weight", None) is not embedding.weight:
        return None
    names = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight is embedding.weight}
    # A body may be saved without the model's prefix.
    names |= {name.removeprefix(f"{model.base_model_prefix}.") for name in names}
    stored = dict(read_tensors(files, names))
    if len(stored) < 2:
        return None
    first, *others = sorted(stored)
    differing = [name for name in others if not torch.equal(stored[first], stored[name])]
    if not differing:
        return None
    return next((name for name in sorted(stored) if "head" in name), differing[0])


def refuse_lookahead(model: Any, tokenizer: Any, probes: ProbeCache) -> None:
    """Reject a model in `eval()` whose later tokens change earlier logits, so that it has read what it predicts."""
    if probes.answer("looks ahead", model, bool, lambda: looks_ahead(model, tokenizer.all_special_ids)):
        raise ModelLoadError(
            f"a later token changes earlier logits of {type(model).__name__}: it reads in both directions and is no causal "
            "decoder (of BERT's kin, is_decoder must be true in config.json)"
        )


def looks_ahead(model: Any, special_ids: Iterable[int] = ()) -> bool:
    """Return whether the logits of a row's first half depend on the tokens of the second.

    Several rows must agree, since rounding can change a token's experts.

    Args:
        model: in `eval()`.
        special_ids: ids to avoid, beside those of the config.
    """
    import torch

    config = model.config.get_text_config()
    vocabulary = int(config.vocab_size)
    context = (context_length(config.to_dict()) or _PROBE_TOKENS) - first_position(model)
    length = max(2, min(_PROBE_TOKENS, context))
    avoided = {*special_ids, *_special_ids(model.config), *_special_ids(config)}
    usable = [token for token in range(min(vocabulary, 4096)) if token not in avoided]
    usable = usable if len(usable) > 1 else list(range(vocabulary))
    half = length // 2
    random = torch.Generator().manual_seed(0)
    for _ in range(_PROBES):
        row = torch.randint(len(usable), (half * 2,), generator=random)
        altered = row.clone()
        altered[half:] = (altered[half:] + 1 + len(usable) // 2) % len(usable)
        rows = torch.tensor(usable)[torch.stack([row, altered])].to(model.device)
        logits, changed = (_logits(model, row[None])[:half] for row in rows)
        # NaN logits are reported when measuring.
        difference = (logits - changed).nan_to_num(0.0, 0.0, 0.0).abs().max()
        limit = _CHANGE if logits.dtype in (torch.float32, torch.float64) else _CHANGE_16_BIT
        if not difference or not difference > limit * logits[logits.isfinite()].float().std():
            return False
    return True


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the (tokens, vocabulary) logits of one row."""
    import torch

    with torch.inference_mode():
        logits: Any = model(**forward_inputs(model, ids, torch.ones_like(ids), first_position(model))).logits
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise ModelLoadError(f"{type(model).__name__} gives no logits per token: it is not a text language model")
    return logits[0]


def _special_ids(config: Any) -> set[int]:
    """Return the special ids of a config: pads, ends, images."""
    ids: set[int] = set()
    for name, value in config.to_dict().items():
        if name.endswith(("_token_id", "_token_index")):
            ids.update(token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))
    return ids
