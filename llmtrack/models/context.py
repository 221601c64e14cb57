"""How many tokens a model may read, from its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the positions that a model was made for, rotary scaling included; None where nothing bounds them.

    Scaled rotary embeddings (linear, dynamic, yarn, longrope ...) reach `factor` times the original length. Whether
    the config's own length is meant before or after scaling differs from model to model: the longer one is allowed.

    >>> context_length({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    8192

    Args:
        config: content of the (text) model's config.
    """
    given = next((value for name in _NAMES if isinstance(value := config.get(name), (int, float))), 0)
    if given <= 0:  # -1 and 0 are how some say that there is no limit
        return None
    lengths = [int(given)]
    for rope in ropes_of(config):
        original = (
            rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or given
        )
        lengths.append(int(original * (rope.get("factor") or 1)))
    return max(lengths)


def first_position(model: Any) -> int:
    """Return the number that a model gives to the first token of a row.

    0, but in RoBERTa and its kin, whose tables of positions begin beyond the row of the pad.
    """
    return max(
        (
            padding + 1
            for name, module in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(padding := getattr(module, "padding_idx", None), int)
        ),
        default=0,
    )


def ropes_of(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary settings of a config, in the spelling of either version; kinds of layers may have their own."""
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(settings := config.get(name), Mapping):
            yield settings
            yield from (each for each in settings.values() if isinstance(each, Mapping))


def varies_with_length(kind: str) -> bool:
    """Return whether the angles of a kind of rotary embedding depend on the length of the sequence."""
    return "dynamic" in kind or kind in ("longrope", "su")
