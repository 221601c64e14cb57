"""Differences between transformers 4.57 and 5, and a faster import of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from llmtrack.host.libraries import gc_paused

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TRANSFORMERS_MAJOR = int(version("transformers").split(".")[0])

SHARES_WITHOUT_CACHE = TRANSFORMERS_MAJOR >= 5
"""Whether layers that share the keys and values of earlier layers work without a cache."""


def import_transformers() -> None:
    """Import the core of transformers a third faster: without the optional packages that it probes for."""
    with hidden_from_transformers(), gc_paused():
        importlib.import_module("transformers.generation.utils")


@contextmanager
def hidden_from_transformers() -> Iterator[None]:
    """Hide scikit-learn (which imports pandas) and SciPy while transformers is imported.

    It needs them only for assisted generation and detection losses. Afterwards they can be imported normally.
    """
    # Once transformers has found them, it would fail on hidden packages.
    checked = "transformers.utils.import_utils" in sys.modules
    hidden = [] if checked else [name for name in ("sklearn", "scipy") if name not in sys.modules]
    # A None entry makes `find_spec`, which transformers uses, fail.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def no_init_weights() -> AbstractContextManager[Any]:
    """Return a context manager that skips weight initialization of new models."""
    if TRANSFORMERS_MAJOR >= 5:
        return importlib.import_module("transformers.initialization").no_init_weights()
    return importlib.import_module("transformers.modeling_utils").no_init_weights()


@contextmanager
def custom_code_refused() -> Iterator[None]:
    """Prevent transformers from loading model code, whatever its flags say."""
    dynamic = importlib.import_module("transformers.dynamic_module_utils")
    generation = importlib.import_module("transformers.generation.utils").GenerationMixin
    hooks = [(dynamic, "get_class_in_module"), (generation, "load_custom_generate")]
    before = [getattr(owner, name) for owner, name in hooks]
    for owner, name in hooks:
        setattr(owner, name, _refuse_code)
    try:
        yield
    finally:
        for (owner, name), original in zip(hooks, before, strict=True):
            setattr(owner, name, original)


def _refuse_code(*args: Any, **kwargs: Any) -> Any:
    # transformers treats an OSError as a model without custom code.
    raise OSError("code that comes with a model is never run")


def rope_settings(theta: float) -> dict[str, Any]:
    """Return the config arguments that set the rotary base."""
    if TRANSFORMERS_MAJOR >= 5:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    return {"rope_theta": theta}


def tensor_parallel() -> dict[str, Any]:
    """Return the `from_pretrained` arguments for tensor parallelism by the model's own plan.

    Version 5 moves the plan into a config and drops the plain argument in a later release.
    """
    if TRANSFORMERS_MAJOR >= 5:
        config = importlib.import_module("transformers.distributed.configuration_utils").DistributedConfig
        if "tp_plan" in getattr(config, "__dataclass_fields__", {}):
            return {"distributed_config": config(tp_plan="auto")}
    return {"tp_plan": "auto"}


def portable_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with its rotary settings in both spellings.

    Version 5 writes only `rope_parameters`, which 4.57 ignores: it would use a default `rope_theta` and silently
    generate wrong text. In version 5, `rope_scaling` takes precedence over them.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return config
    scaling = config.get("rope_scaling")
    settings = scaling if scaling and isinstance(scaling, dict) else rope
    theta = settings.get("rope_theta", config.get("rope_theta", rope["rope_theta"]))
    is_scaled = settings.get("rope_type", settings.get("type", "default")) != "default"
    scaling = {key: value for key, value in settings.items() if key != "rope_theta"} if is_scaled else None
    return {**config, "rope_theta": theta, "rope_scaling": scaling}


def restore_rope(config: PretrainedConfig) -> None:
    """Convert rotary settings saved by version 5 to the running version's spelling."""
    if TRANSFORMERS_MAJOR < 5:
        portable = portable_rope(config.to_dict())
        for name in ("rope_theta", "rope_scaling"):
            if name in portable:
                setattr(config, name, portable[name])


def portable_tokenizer(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json` with a class name that both versions know."""
    if settings.get("tokenizer_class") == "TokenizersBackend":
        return {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    return settings


def make_savable(model: PreTrainedModel) -> None:
    """Make a model loaded from GGUF an ordinary float model that can be saved.

    Version 5 marks it as quantized, refuses to save it, and would look for the GGUF file on loading.
    """
    for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(holder, name):
            delattr(holder, name)
