"""Load a model and its tokenizer from the first candidate that works: without custom code, for greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf_conversion, hub, packaged, synthetic
from llmtrack.models.attention import (
    attention_arguments,
    remove_stray_windows,
    share_keys_without_cache,
    slow_attention_warning,
    use_complete_attention,
)
from llmtrack.models.cache import read_manifest
from llmtrack.models.decoder import (
    headless_warning,
    refuse_adapter,
    refuse_incomplete,
    refuse_lookahead,
    refuse_other_architectures,
)
from llmtrack.models.digests import ModelDigests, model_digests
from llmtrack.models.disk import Weights, count_weights
from llmtrack.models.load_errors import (
    explaining,
    explaining_quantization,
    explaining_tokenizer,
    reason_of,
    refuse_damaged,
)
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.models.safe_view import LOCAL, explaining_custom_code, safe_view
from llmtrack.models.source import PRESETS, ModelSource, missing_path, parse_candidates
from llmtrack.models.weights import refuse_unscaled, require_weights, weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RANDOM_WEIGHTS = "random weights: speed and memory are real, quality figures are meaningless"
SEED = 0
SHARDED, SPREAD = "sharded", "spread"


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode and its tokenizer.

    Attributes:
        model_id: the loaded candidate, as written.
        revision: commit of a hub model.
        load_time_s: seconds to read weights and tokenizer, without downloading or converting.
        file_size_bytes: bytes of the weight files; None if there are none.
        facts: params to track.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    model_id: str
    revision: str | None
    digests: ModelDigests
    load_time_s: float = 0.0
    file_size_bytes: int | None = None
    facts: dict[str, str | int | float | bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    probes: ProbeCache = field(default_factory=ProbeCache)


@dataclass(frozen=True)
class ModelIdentity:
    """The model that a spec resolves to, known without loading its weights.

    Attributes:
        folder: its files; None for a synthetic model.
        revision: commit of a hub model.
        gguf: the GGUF file, if requested; the folder then has no weights.
    """

    source: ModelSource
    folder: Path | None
    revision: str | None
    digests: ModelDigests
    warnings: tuple[str, ...] = ()
    gguf: Path | None = None

    @property
    def weights(self) -> Weights:
        """Its number of weights."""
        if self.folder is None:
            return PRESETS[self.source.location].weights
        return count_weights(weight_files(self.folder)[1])


Candidate = TypeVar("Candidate", LoadedModel, ModelIdentity)


def identify_model(
    spec: str, revision: str | None = None, device: str = "cpu", *, as_gguf: bool = False
) -> ModelIdentity:
    """Download or convert the first available candidate of a comma list, and identify its weights.

    Args:
        spec: as for `load_model`.
        revision: branch, tag or commit of a hub model.
        device: determines the random weights of a synthetic model.
        as_gguf: leave a GGUF file unconverted, for an engine that reads it.

    Raises:
        UsageError: the spec is invalid.
        ModelLoadError: no candidate is available; the message has a line for each.
    """
    return _first(spec, lambda source: _identify(source, revision, device, as_gguf))


def load_model(
    spec: str, *, device: str, dtype: torch.dtype, revision: str | None = None, placed: str = ""
) -> LoadedModel:
    """Load the first loadable candidate of a comma list.

    No code of a model's source is run, and its generation settings are replaced by plain greedy ones.

    Args:
        spec: a hub id, a folder, a .gguf file, `packaged:NAME`, `synthetic:PRESET`, or a comma list of them.
        device: `cpu` or `cuda:N`.
        revision: branch, tag or commit of a hub model.
        placed: `sharded` loads this rank's shard of each layer, in an open group of processes, and `spread` whole
            layers onto all GPUs, both from a folder only; empty for a single device.

    Raises:
        UsageError: the spec is invalid.
        ModelLoadError: no candidate can be loaded; the message has a line for each.
    """
    return _first(spec, lambda source: _load(source, device, dtype, revision, placed))


def load_folder(
    folder: Path, *, device: str, dtype: torch.dtype, placed: str = ""
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model folder offline and without running its code; for `placed`, see `load_model`.

    Raises:
        ModelLoadError: weights or tokenizer are missing or incomplete, or its config is not a causal decoder's.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from llmtrack.host.transformers_compat import custom_code_refused, restore_rope, tensor_parallel

    refuse_damaged(folder)
    refuse_adapter(folder)
    kind, files = require_weights(folder)
    view = str(safe_view(folder))
    with explaining("config.json describes no model that transformers knows"), explaining_custom_code(folder):
        config = AutoConfig.from_pretrained(view, **LOCAL)
        refuse_other_architectures(config)
        restore_rope(config)
        remove_stray_windows(config)
    placement: dict[str, Any] = {}
    if placed == SHARDED:
        refuse_unsharded(config)
        placement = tensor_parallel()
    elif placed == SPREAD:
        placement = {"device_map": "auto"}
    _use_plain_kernels(config, device)
    _remove_invalid_pad(config)
    with explaining("its tokenizer cannot be read"), explaining_tokenizer(folder), explaining_custom_code(folder):
        tokenizer = AutoTokenizer.from_pretrained(view, **LOCAL)
    with explaining("its weights cannot be read"):
        refuse_unscaled(files, config)
    with (
        explaining("config.json and the weights do not make a model"),
        explaining_quantization(config),
        custom_code_refused(),
    ):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            view,
            config=config,
            dtype=dtype,
            use_safetensors=kind == "safetensors",
            weights_only=True,
            output_loading_info=True,
            **attention_arguments(config),
            **placement,
            **LOCAL,
        )
    model, loading = loaded
    refuse_incomplete(model, loading, files)
    if placed == SPREAD:
        refuse_offloaded(getattr(model, "hf_device_map", {}), device)
    model = (model if placed else model.to(device)).eval()
    share_keys_without_cache(model)
    use_complete_attention(model)
    return model, tokenizer


def refuse_offloaded(places: Mapping[str, Any], device: str) -> None:
    """Raise a ModelLoadError if parts are offloaded from the GPUs: speed would be meaningless."""
    offloaded = [name for name, place in places.items() if str(place) in ("cpu", "disk")]
    if offloaded and device.startswith("cuda"):
        raise ModelLoadError(
            f"{len(offloaded)} parts of it do not fit on the GPUs ({offloaded[0]} ...): use a smaller dtype, or more GPUs"
        )


def refuse_unsharded(config: Any) -> None:
    """Raise a ModelLoadError without a plan to shard the model, or with heads not divisible by the number of ranks."""
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
        counts = ", ".join(f"{name}={count}" for name, count in heads.items())
        raise ModelLoadError(f"{counts} cannot be divided among {ranks}: use a tensor_parallel that divides them")


def clean_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace a model's generation settings by greedy ones, keeping only the special ids within the vocabulary.

    Sampling, repetition penalties, forced or suppressed tokens would change the text or the time of a measurement.
    """
    from transformers import GenerationConfig

    rows = int(model.config.get_text_config().vocab_size)

    def special_id(name: str) -> int | list[int] | None:
        values = (getattr(holder, name, None) for holder in (model.generation_config, model.config, tokenizer))
        value: Any = next((value for value in values if value is not None), None)
        if isinstance(value, int):
            return value if 0 <= value < rows else None
        return [token for token in value or () if 0 <= token < rows] or None

    ids = {name: special_id(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(do_sample=False, **ids)


def _first(spec: str, attempt: Callable[[ModelSource], Candidate]) -> Candidate:
    """Return the first candidate that works, with a warning for each one skipped."""
    failed: list[str] = []
    for source in parse_candidates(spec):
        try:
            model: Candidate = attempt(source)
        except Exception as error:  # try the next candidate after any error
            failed.append(f"{source.spec}: {reason_of(error)}")
            continue
        return replace(model, warnings=(*(f"passed over {line}" for line in failed), *model.warnings))
    lines = "".join(f"\n  {line}" for line in failed)
    raise ModelLoadError(f"no model could be loaded, tried {len(failed)}:{lines}")


def _identify(source: ModelSource, revision: str | None, device: str, as_gguf: bool) -> ModelIdentity:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    warnings = _ignored(source, revision)
    if as_gguf and source.kind in ("gguf", "packaged"):
        path = packaged.gguf_file(source.location) if source.kind == "packaged" else Path(source.location)
        description = gguf_conversion.describe(path)
        return ModelIdentity(source, description, None, _digests(source, description), warnings, path)
    folder, commit = _folder_of(source, revision)
    if folder is None:
        digests = synthetic.digests(source.location, SEED, device)
        return ModelIdentity(source, None, None, digests, (*warnings, RANDOM_WEIGHTS))
    refuse_damaged(folder)
    refuse_adapter(folder)
    require_weights(folder)
    return ModelIdentity(source, folder, commit, _digests(source, folder), warnings)


def _load(source: ModelSource, device: str, dtype: torch.dtype, revision: str | None, placed: str) -> LoadedModel:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    warnings = list(_ignored(source, revision))
    # Downloading and converting happen once; only loading recurs on every start.
    folder, commit = _folder_of(source, revision)
    start = time.perf_counter()
    if folder is None:
        model, tokenizer = synthetic.build(source.location, device=device, dtype=dtype, seed=SEED)
        digests, weights = synthetic.digests(source.location, SEED, device), "random"
        file_size = None
        seconds = time.perf_counter() - start
        warnings.append(RANDOM_WEIGHTS)
    else:
        model, tokenizer = load_folder(folder, device=device, dtype=dtype, placed=placed)
        seconds = time.perf_counter() - start
        digests = _digests(source, folder)
        with explaining("the model that config.json describes cannot compute"):
            refuse_lookahead(model, tokenizer, _probe_cache(digests, placed))
        warnings += (*headless_warning(model.config), *slow_attention_warning(model))
        weights, files = weight_files(folder)
        file_size = sum(path.stat().st_size for path in files)
        if weights == "pickle":
            warnings.append("the weights are a pickle file, read with weights_only: prefer safetensors")
    clean_generation(model, tokenizer)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        model_id=source.spec,
        revision=commit,
        digests=digests,
        load_time_s=seconds,
        file_size_bytes=file_size,
        facts=_facts(model, source, weights),
        warnings=tuple(warnings),
        probes=_probe_cache(digests, placed),
    )


def _ignored(source: ModelSource, revision: str | None) -> tuple[str, ...]:
    if not revision or source.kind == "hub":
        return ()
    return (f"revision {revision} is ignored: {source.spec} is not a hub model",)


def _digests(source: ModelSource, folder: Path) -> ModelDigests:
    digests = model_digests(folder)
    if source.kind in ("gguf", "packaged"):
        return replace(digests, weights=f"gguf:{read_manifest(folder)['gguf_sha256']}")
    return digests


def _probe_cache(digests: ModelDigests, placed: str) -> ProbeCache:
    return ProbeCache() if placed else ProbeCache(digests.tags)  # a shard has none


def _folder_of(source: ModelSource, revision: str | None) -> tuple[Path | None, str | None]:
    """Return the folder of a model, downloaded or converted if needed, and a hub model's commit."""
    if source.kind == "synthetic":
        return None, None
    if source.kind == "hub":
        return hub.snapshot(source.location, revision)
    if source.kind == "gguf":
        return gguf_conversion.ensure(Path(source.location)), None
    if source.kind == "packaged":
        return packaged.ensure(source.location), None
    return Path(source.location), None


def _facts(model: PreTrainedModel, source: ModelSource, weights: str) -> dict[str, str | int | float | bool]:
    return {
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model_source": source.kind,
        "weights_format": weights,
        "trust_remote_code": False,
    }


def _use_plain_kernels(config: Any, device: str) -> None:
    """Use plain PyTorch for a hybrid model's recurrence if its kernels are unavailable."""
    kernels = device.startswith("cuda") and all(map(find_spec, ("mamba_ssm", "causal_conv1d")))
    if getattr(config, "use_mamba_kernels", False) and not kernels:
        config.use_mamba_kernels = False


def _remove_invalid_pad(config: Any) -> None:
    """Remove a pad id beyond the vocabulary: pads are masked, and creating the model would fail."""
    for part in (config, config.get_text_config()):
        pad = getattr(part, "pad_token_id", None)
        if pad is not None and not 0 <= pad < getattr(part, "vocab_size", pad + 1):
            part.pad_token_id = None
