"""Identify the model and text that a scenario would measure, from their files and without loading the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmtrack.errors import LlmtrackError
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask

if TYPE_CHECKING:
    from llmtrack.models.load import ModelIdentity

GGUF_READER = "llamacpp"
"""The backend that reads GGUF files directly."""

UNKNOWN = {"weights_digest": "unknown"}
"""Identity of a missing model, equal to that of no run."""


def identify(scenario: Scenario) -> dict[str, str]:
    """Return the model tags that a run of a scenario would have: digests, and a hub model's commit.

    Empty for training from scratch, which the scenario identifies.
    """
    variant, task = scenario.variant, scenario.task
    try:
        if isinstance(task, TrainTask) and _from_scratch(variant, task):
            return {}
        identity = _identity(variant)
        tags = {**identity.digests.tags, **({"revision": identity.revision} if identity.revision else {})}
        for reference in scenario.variants[1:]:
            digests = _identity(reference).digests.tags
            tags |= {REFERENCE_TAG_PREFIX + name: value for name, value in digests.items()}
    except LlmtrackError:
        return dict(UNKNOWN)
    return tags


def check(scenarios: Sequence[Scenario]) -> None:
    """Reject unusable scenarios: an unknown option, an unreadable corpus, an unavailable model.

    Downloads and converts models, once. What another package's backend can load is known to that package only.

    Raises:
        LlmtrackError: why the first unusable one cannot be measured.
    """
    from llmtrack.engines.registry import BUILTIN, check_variant
    from llmtrack.quality.corpora import load_corpus

    variants = list(dict.fromkeys(variant for scenario in scenarios for variant in scenario.variants))
    for variant in variants:
        check_variant(variant)
    for text in dict.fromkeys(text for scenario in scenarios for text in scenario.texts):
        load_corpus(text)
    different_files = {
        (v.model, v.revision, v.device, v.backend == GGUF_READER, v.quantization == NONE): v
        for v in variants
        if v.backend in BUILTIN
    }
    for variant in different_files.values():
        _identity(variant)


def _from_scratch(variant: Variant, task: TrainTask) -> bool:
    from llmtrack.train.session import starts_from_scratch  # imports the training stack

    return starts_from_scratch(variant.model, task.start)


def _identity(variant: Variant) -> ModelIdentity:
    from llmtrack.devices import resolve_device
    from llmtrack.models import load

    # Random weights depend on PyTorch's device.
    device = resolve_device(variant.device) if variant.backend == "torch" else "cpu"
    as_gguf = variant.backend == GGUF_READER and variant.quantization == NONE
    return load.identify_model(variant.model, variant.revision, device, as_gguf=as_gguf)
