"""Make a model behave the same with and without a cache, where transformers treats settings differently."""

from __future__ import annotations

from functools import partial
from typing import Any

_OF_CACHES = ("layer_types", "sliding_window", "attention_chunk_size")
"""Settings that determine transformers' cache for any model."""


def forget_stray_windows(config: Any) -> None:
    """Remove window settings unknown to a model's class: its attention has no window, but its cache would.

    Conversions from another architecture can leave such settings in config.json.
    """
    text = config.get_text_config()
    try:
        known = type(text)()
    except Exception:  # the class has no default settings
        return
    for name in _OF_CACHES:
        if getattr(text, name, None) is not None and not hasattr(known, name):
            setattr(text, name, None)


def share_keys(model: Any) -> None:
    """Let layers that reuse earlier layers' keys and values do so without a cache, too.

    In transformers 4.57 they read them from the cache and compute different ones without it. A cache for a single pass
    costs the memory of its keys and values.
    """
    from llmtrack.host.transformers_compat import SHARES_WITHOUT_CACHE

    shared = getattr(model.config.get_text_config(), "num_kv_shared_layers", None)
    body = model.base_model
    if SHARES_WITHOUT_CACHE or not shared or any(map(_is_own, body._forward_pre_hooks.values())):
        return
    body.register_forward_pre_hook(partial(_with_cache, model.config), with_kwargs=True)
    body.register_forward_hook(_without_cache, with_kwargs=True)


def _with_cache(
    config: Any, module: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from transformers import DynamicCache

    if named.get("past_key_values") is not None:
        return args, named
    return args, {**named, "past_key_values": DynamicCache(config=config)}


def _without_cache(module: Any, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
    """Drop a cache that was not asked for: `generate` would pass it on, and the next pass would extend it."""
    if named.get("use_cache") is False and hasattr(output, "past_key_values"):
        output.past_key_values = None


def _is_own(hook: Any) -> bool:
    return isinstance(hook, partial) and hook.func is _with_cache
