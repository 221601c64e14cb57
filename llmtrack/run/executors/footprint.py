"""Predict the memory of a model before it is loaded: from its last measurement, or from its weights."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import psutil

from llmtrack.errors import LlmtrackError
from llmtrack.host.formatting import GIB, MIB
from llmtrack.measure.gpus import card_of, query_driver
from llmtrack.measure.memory import available_bytes
from llmtrack.models.cache import cache_root, safe_name, write_note
from llmtrack.models.source import PRESETS, ModelSource, parse_candidates
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Variant
from llmtrack.spec.serialization import digest, to_json

RESERVE = 0.10
"""Share of the memory left free for the system and prediction errors."""

OVERHEAD = GIB // 2
"""Memory of a worker beside the weights: imports; on a GPU, the driver context."""

WIDEST = 2
"""Files mostly hold 16 bits per weight; float32 takes 32."""


def fits(*variants: Variant) -> bool:
    """Return whether the models of all variants are predicted to fit into the free memory at once."""
    if not variants:
        return True
    need = sum(map(predicted_bytes, variants))
    total, free = _on_card(variants[0]) or (psutil.virtual_memory().total, available_bytes())
    return need <= free - RESERVE * total


def predicted_bytes(variant: Variant) -> int:
    """Predict a variant's memory from its last measurement, else its weights; 0 if neither is known here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(_note(variant).read_text(encoding="utf-8"))["bytes"])
    weights = weights_bytes(variant.model)
    return weights + OVERHEAD if weights else 0


def record(measurement: Measurement) -> None:
    """Record the peak memory of a measured variant, for `predicted_bytes`."""
    peak = measurement.metrics.get("peak_memory_mib")
    if peak:
        write_note(_note(measurement.scenario.variant), json.dumps({"bytes": int(peak * MIB)}))


def weights_bytes(model: str) -> int:
    """Return the float32 bytes of a model's weights by its files or shape; of a list, of the first one found."""
    with suppress(LlmtrackError):
        for source in parse_candidates(model):
            if size := _weights(source):
                return size
    return 0


def _weights(source: ModelSource) -> int:
    if source.kind == "synthetic":
        return PRESETS[source.location].weights.stored()
    if source.kind == "packaged":
        folders = (cache_root() / "models").glob(f"{safe_name(source.location)}-*")
        return max(map(_size, folders), default=0)
    if source.kind == "hub":
        snapshots = _hub_cache().glob(f"models--{source.location.replace('/', '--')}/snapshots/*")
        return WIDEST * max(map(_size, snapshots), default=0)
    return WIDEST * _size(Path(source.location))


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the weights in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for kind in ("safetensors", "bin") for file in path.glob(f"*.{kind}"))


def _on_card(variant: Variant) -> tuple[int, int] | None:
    """Return total and free bytes of a variant's GPU, or None without a GPU or driver information."""
    if variant.device == "cpu":
        return None
    card = card_of("cuda" if variant.device == "auto" else variant.device)
    if card is None:
        return None
    answer = query_driver("-i", card.uuid, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")
    with suppress(ValueError, IndexError):
        total, free = (int(field) * MIB for field in answer[0])
        return total, free
    return None


def _note(variant: Variant) -> Path:
    return cache_root() / "footprints" / f"{digest(to_json(variant))}.json"
