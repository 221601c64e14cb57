"""Load a model and its tokenizer from the first candidate that works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf, hub, packaged, synthetic
from llmtrack.models.cache import read_manifest
from llmtrack.models.decoder import (
    headless,
    refuse_adapter,
    refuse_incomplete,
    refuse_other_architectures,
    refuse_peeking,
)
from llmtrack.models.digests import ModelDigests, model_digests, weight_files
from llmtrack.models.reasons import one_line, quantized_explained, tokenizer_explained
from llmtrack.models.source import ModelSource, missing_path, parse_candidates

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RANDOM_WEIGHTS = "random weights: speed and memory are real, quality figures are meaningless"
SEED = 0
SHARDED, SPREAD = "sharded", "spread"


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, from the same source and revision.

    Attributes:
        model: in eval mode, on the device, in the dtype.
        tokenizer: the tokenizer that belongs to it.
        model_id: the candidate that was loaded, as it was written.
        revision: commit of a hub model, otherwise None.
        digests: of everything that changes what it says.
        load_time_s: seconds to read the weights and the tokenizer, without fetching or converting them.
        file_size_bytes: bytes of the weights' files; None where there are none.
        facts: what is known of the model and is tracked.
        warnings: findings in words.
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


@dataclass(frozen=True)
class ModelIdentity:
    """Which model a spec leads to, known without loading its weights.

    Attributes:
        source: the candidate that was chosen.
        folder: folder of its files; None for a synthetic one.
        revision: commit of a hub model, otherwise None.
        digests: as `LoadedModel` has them.
        warnings: findings in words.
        gguf: the GGUF file, where it was asked for and there is one; the folder then holds no weights.
    """

    source: ModelSource
    folder: Path | None
    revision: str | None
    digests: ModelDigests
    warnings: tuple[str, ...] = ()
    gguf: Path | None = None


Found = TypeVar("Found", LoadedModel, ModelIdentity)


def identify(
    spec: str, revision: str | None = None, device: str = "cpu", *, as_gguf: bool = False
) -> ModelIdentity:
    """Fetch or convert the first candidate of a comma list that there is, and tell which weights it has.

    Args:
        spec: as `load_model` takes it.
        revision: branch, tag or commit of a hub model.
        device: where random weights would be drawn, which are others on another kind of device.
        as_gguf: leave a GGUF file as it is, for an engine that reads it.

    Raises:
        UsageError: the spec is not understood.
        ModelLoadError: no candidate is there; the message has a line for each.
    """
    return _first(spec, lambda source: _identify(source, revision, device, as_gguf))


def _identify(source: ModelSource, revision: str | None, device: str, as_gguf: bool) -> ModelIdentity:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    if as_gguf and source.kind in ("gguf", "packaged"):
        path = packaged.gguf_file(source.location) if source.kind == "packaged" else Path(source.location)
        about = gguf.describe(path)
        return ModelIdentity(source, about, None, _digests(source, about), gguf=path)
    folder, commit = _folder_of(source, revision)
    if folder is None:
        digests = synthetic.digests(source.location, SEED, device)
        return ModelIdentity(source, None, None, digests, (RANDOM_WEIGHTS,))
    refuse_adapter(folder)
    return ModelIdentity(source, folder, commit, _digests(source, folder))


def _digests(source: ModelSource, folder: Path) -> ModelDigests:
    found = model_digests(folder)
    if source.kind in ("gguf", "packaged"):
        return replace(found, weights=f"gguf:{read_manifest(folder)['gguf_sha256']}")
    return found


def load_model(
    spec: str, *, device: str, dtype: torch.dtype, revision: str | None = None, placed: str = ""
) -> LoadedModel:
    """Load the first candidate of a comma list that can be loaded.

    No code of a model's source is run, and its generation settings are replaced by plain greedy ones.

    Args:
        spec: a hub id, a folder, a .gguf file, `packaged:NAME`, `synthetic:PRESET`, or a comma list of them.
        device: `cpu` or `cuda:N`.
        dtype: dtype of the weights.
        revision: branch, tag or commit of a hub model; other sources have none.
        placed: `sharded` loads this rank's share of each layer, in a group of processes that is open, and `spread` whole
            layers onto all GPUs, both from a folder only; empty: all of it onto the device.

    Raises:
        UsageError: the spec is not understood.
        ModelLoadError: no candidate can be loaded; the message has a line for each.
    """
    return _first(spec, lambda source: _load(source, device, dtype, revision, placed))


def _first(spec: str, attempt: Callable[[ModelSource], Found]) -> Found:
    """Return what the first candidate that does not raise gives, with a warning for each one passed over."""
    failed: list[str] = []
    for source in parse_candidates(spec):
        try:
            found: Found = attempt(source)
        except Exception as error:  # whatever one candidate raises, the next one is tried
            failed.append(f"{source.spec}: {one_line(error)}")
            continue
        return replace(found, warnings=(*(f"passed over {line}" for line in failed), *found.warnings))
    lines = "".join(f"\n  {line}" for line in failed)
    raise ModelLoadError(f"no model could be loaded, tried {len(failed)}:{lines}")


def _load(
    source: ModelSource, device: str, dtype: torch.dtype, revision: str | None, placed: str
) -> LoadedModel:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    warnings: list[str] = []
    if revision and source.kind != "hub":
        warnings.append(f"revision {revision} is ignored: {source.spec} is not a hub model")
    # Fetching and converting happen once; loading is what every later start pays.
    folder, commit = _folder_of(source, revision)
    start = time.perf_counter()
    if folder is None:
        model, tokenizer = synthetic.build(source.location, device=device, dtype=dtype, seed=SEED)
        digests, weights = synthetic.digests(source.location, SEED, device), "random"
        seconds = time.perf_counter() - start
        warnings.append(RANDOM_WEIGHTS)
    else:
        model, tokenizer = load_folder(folder, device=device, dtype=dtype, placed=placed)
        seconds = time.perf_counter() - start
        refuse_peeking(model, tokenizer)
        warnings += headless(model.config)
        weights = weight_files(folder)[0]
        digests = _digests(source, folder)
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
        file_size_bytes=None
        if folder is None
        else sum(path.stat().st_size for path in weight_files(folder)[1]),
        facts=_facts(model, source, weights),
        warnings=tuple(warnings),
    )


def _folder_of(source: ModelSource, revision: str | None) -> tuple[Path | None, str | None]:
    """Return the folder that holds a model, fetched or converted if need be, and a hub model's commit."""
    if source.kind == "synthetic":
        return None, None
    if source.kind == "hub":
        return hub.snapshot(source.location, revision)
    if source.kind == "gguf":
        return gguf.ensure(Path(source.location)), None
    if source.kind == "packaged":
        return packaged.ensure(source.location), None
    return Path(source.location), None


def load_folder(
    folder: Path, *, device: str, dtype: torch.dtype, placed: str = ""
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model folder without the network and without running code that it may hold.

    Args:
        folder: the folder.
        device: `cpu` or `cuda:N`.
        dtype: dtype of the weights.
        placed: as in `load_model`.

    Raises:
        ModelLoadError: weights or tokenizer are missing or incomplete, or it is no causal decoder by its config.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from llmtrack.compat import restore_rope, tensor_parallel

    refuse_adapter(folder)
    kind, files = weight_files(folder)
    if not files:
        raise ModelLoadError(
            f"{folder} holds no model.safetensors or pytorch_model.bin, nor an index of their parts: give a whole model "
            "folder"
        )
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    config = AutoConfig.from_pretrained(str(folder), **safe)
    refuse_other_architectures(config)
    restore_rope(config)
    shares: dict[str, Any] = {}
    if placed == SHARDED:
        refuse_unsharded(config)
        shares = tensor_parallel()
    elif placed == SPREAD:
        shares = {"device_map": "auto"}
    _use_plain_kernels(config, device)
    _forget_impossible_pad(config)
    with tokenizer_explained(folder):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **safe)
    with quantized_explained(config):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            use_safetensors=kind == "safetensors",
            weights_only=True,
            output_loading_info=True,
            **shares,
            **safe,
        )
    model, loading = loaded
    refuse_incomplete(model, loading, files)
    if placed == SPREAD:
        refuse_offloaded(getattr(model, "hf_device_map", {}), device)
    return (model if placed else model.to(device)).eval(), tokenizer


def refuse_offloaded(places: Mapping[str, Any], device: str) -> None:
    """Refuse a model of which parts lie beside the cards: what is fetched for each token has no speed worth a number.

    Raises:
        ModelLoadError: they do.
    """
    beside = [name for name, place in places.items() if str(place) in ("cpu", "disk")]
    if beside and device.startswith("cuda"):
        raise ModelLoadError(
            f"{len(beside)} parts of it do not fit on the GPUs ({beside[0]} ...): use a smaller dtype, or more GPUs"
        )


def refuse_unsharded(config: Any) -> None:
    """Refuse a model whose layers cannot be shared out among the ranks of the group that is open.

    Raises:
        ModelLoadError: transformers has no plan for it, or its heads cannot be divided by the number of ranks.
    """
    import torch.distributed as dist

    text, ranks = config.get_text_config(), dist.get_world_size()
    if not getattr(text, "base_model_tp_plan", None):
        raise ModelLoadError(
            f"transformers has no plan to share {config.model_type} out: use tensor_parallel=1"
        )
    heads = {
        name: count
        for name in ("num_attention_heads", "num_key_value_heads")
        if (count := getattr(text, name, None)) and count % ranks
    }
    if heads:
        told = ", ".join(f"{name}={count}" for name, count in heads.items())
        raise ModelLoadError(
            f"{told} cannot be divided among {ranks}: use a tensor_parallel that divides them"
        )


def _use_plain_kernels(config: Any, device: str) -> None:
    """Let a hybrid model compute its recurrence in plain PyTorch where the kernels that it asks for cannot be there."""
    kernels = device.startswith("cuda") and all(map(find_spec, ("mamba_ssm", "causal_conv1d")))
    if getattr(config, "use_mamba_kernels", False) and not kernels:
        config.use_mamba_kernels = False


def _forget_impossible_pad(config: Any) -> None:
    """Forget the id of a pad that the model has no row for: pads are masked, and making the model would fail."""
    for each in (config, config.get_text_config()):
        pad = getattr(each, "pad_token_id", None)
        if pad is not None and not 0 <= pad < getattr(each, "vocab_size", pad + 1):
            each.pad_token_id = None


def clean_generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace a model's generation settings by greedy ones that hold the special ids only.

    What a checkpoint ships (sampling, repetition penalties, forced or suppressed tokens) would change the
    text or the time of a greedy measurement. Several end-of-sequence ids are kept as they are.
    """
    from transformers import GenerationConfig

    def known(name: str) -> Any:
        for holder in (model.generation_config, model.config, tokenizer):
            if (value := getattr(holder, name, None)) is not None:
                return value
        return None

    ids = {name: known(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(do_sample=False, **ids)


def _facts(model: PreTrainedModel, source: ModelSource, weights: str) -> dict[str, str | int | float | bool]:
    return {
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model_source": source.kind,
        "weights_format": weights,
        "trust_remote_code": False,
    }
