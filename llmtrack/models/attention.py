"""Make attention compute everything in the config, alike with and without a cache: transformers may ignore parts.

Score caps, sinks and learned biases are part of a model; only the eager implementation always supports them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError

if TYPE_CHECKING:
    import torch


EAGER = "eager"

_CACHE_SETTINGS = ("layer_types", "sliding_window", "attention_chunk_size")
"""Settings that determine transformers' cache for any model."""

_CAP = re.compile(r"att\w*softcap|softcap\w*att")
_PROBE_TOKENS = 8
_SHARP = 100.0
"""Standard deviation of the probe's scores, large enough to reveal a cap."""
_TOLERANCE = 1e-2
"""Tolerance relative to the output's standard deviation: above rounding, below the effect of a cap."""


def score_cap_name(config: Mapping[str, Any]) -> str:
    """Return the name of a config's cap on attention scores, or an empty text."""
    return next((name for name, value in config.items() if value and _CAP.search(name)), "")


def attention_arguments(config: Any) -> dict[str, str]:
    """Return the `from_pretrained` arguments that select eager attention for a config with a score cap."""
    capped = score_cap_name(config.get_text_config().to_dict())
    return {"attn_implementation": EAGER} if capped else {}


def slow_attention_warning(model: Any) -> tuple[str, ...]:
    """Warn if attention is eager although transformers has a faster implementation for the model."""
    config = model.config.get_text_config()
    if not getattr(model, "_supports_sdpa", False) or getattr(config, "_attn_implementation", "") != EAGER:
        return ()
    ignored = score_cap_name(config.to_dict()) or "a part of this model"
    return (f"attention is eager, and slower: the faster implementation of transformers ignores {ignored}",)


def use_complete_attention(model: Any) -> None:
    """Switch a model in `eval()` to eager attention if its own implementation ignores a feature.

    Raises:
        ModelLoadError: it ignores a feature and cannot be switched.
    """
    if not _ignores_a_feature(model):
        return
    try:
        model.set_attn_implementation(EAGER)
    except Exception as error:
        used = model.config._attn_implementation
        raise ModelLoadError(
            f"the {used} attention of {type(model).__name__} ignores a part of the model, and transformers cannot switch it to "
            f"eager attention ({type(error).__name__})"
        ) from error


def remove_stray_windows(config: Any) -> None:
    """Remove window settings unknown to a model's class, left by a conversion: only its cache would have the window."""
    text = config.get_text_config()
    try:
        defaults = type(text)()
    except Exception:  # the class has no default settings
        return
    for name in _CACHE_SETTINGS:
        if getattr(text, name, None) is not None and not hasattr(defaults, name):
            setattr(text, name, None)


def share_keys_without_cache(model: Any) -> None:
    """Make layers that reuse earlier layers' keys and values do so without a cache, too.

    transformers 4.57 shares them through the cache only, and computes different ones without it. A cache for a single
    pass costs the memory of its keys and values.
    """
    from llmtrack.host.transformers_compat import SHARES_WITHOUT_CACHE

    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", None)
    body = model.base_model
    if SHARES_WITHOUT_CACHE or not shared or any(map(_adds_cache, body._forward_pre_hooks.values())):
        return
    body.register_forward_pre_hook(partial(_with_cache, model.config), with_kwargs=True)
    body.register_forward_hook(_without_cache, with_kwargs=True)


def _ignores_a_feature(model: Any) -> bool:
    """Return whether any layer's attention differs from eager attention on the same, sharpened queries."""
    import torch

    differences: list[bool] = []

    def compared(fast: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        eager = inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
        try:
            output = fast(module, query, key, value, mask, **options)
        except ValueError:  # version 5 rejects unsupported arguments
            if eager is None:
                raise
            differences.append(True)
            return eager(module, query, key, value, _additive(mask, query, key), **options)
        if eager is not None and not any(differences):
            differences.append(_differ(fast, eager, module, query, key, value, mask, options))
        return output

    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.arange(1, 1 + _PROBE_TOKENS, device=next(model.parameters()).device)[None] % vocabulary
    try:
        with _each_attention(model, compared), torch.inference_mode():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    except Exception:  # reported when the model computes
        pass
    return any(differences)


@contextmanager
def _each_attention(model: Any, compared: Any) -> Iterator[None]:
    """Route a model's attention calls through a function, if transformers finds its implementation by name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = getattr(model.config.get_text_config(), "_attn_implementation", None) or EAGER
    if name == EAGER or name not in ALL_ATTENTION_FUNCTIONS:
        yield
        return
    fast = ALL_ATTENTION_FUNCTIONS[name]
    ALL_ATTENTION_FUNCTIONS[name] = lambda *args, **kwargs: compared(fast, *args, **kwargs)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[name] = fast


def _differ(
    fast: Any, eager: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]
) -> bool:
    # In float32, because rounding sharp scores to 16 bits would change their softmax.
    query, key, value = query.float(), key.float(), value.float()
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, dim=1).transpose(2, 3) * scaling
    sharp = query * (_SHARP / scores.std().clamp(min=1e-6))
    mask = _additive(mask, query, key)
    try:
        output, expected = (attend(module, sharp, key, value, mask, **options)[0].float() for attend in (fast, eager))
    except Exception:  # implementations with other inputs are not compared
        return False
    return bool((output - expected).abs().max() > _TOLERANCE * expected.std().clamp(min=1e-6))


def _additive(mask: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return an additive mask; the default implementation omits it for a row without pads."""
    import torch

    if mask is None:
        mask = torch.ones((query.shape[2], key.shape[2]), dtype=torch.bool, device=query.device).tril()[None, None]
    if mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, lowest)
    return mask.to(query.dtype)


def _with_cache(
    config: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from transformers import DynamicCache

    if kwargs.get("past_key_values") is not None:
        return args, kwargs
    return args, {**kwargs, "past_key_values": DynamicCache(config=config)}


def _without_cache(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Drop an unrequested cache: `generate` would pass it on, and the next pass would extend it."""
    if kwargs.get("use_cache") is False and hasattr(output, "past_key_values"):
        output.past_key_values = None


def _adds_cache(hook: Any) -> bool:
    return isinstance(hook, partial) and hook.func is _with_cache
