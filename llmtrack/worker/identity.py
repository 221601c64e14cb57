"""Which model a scenario would measure now, told by its files and without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtrack.errors import LlmtrackError
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.scenario import Scenario, Variant
from llmtrack.task import TrainTask

if TYPE_CHECKING:
    from llmtrack.models.load import ModelIdentity

UNKNOWN = {"weights_digest": "unknown"}
"""The identity of a model that cannot be found: equal to that of no run."""


def identify(scenario: Scenario) -> dict[str, str]:
    """Return the tags that a run of a scenario would have of its models: digests, and a hub model's commit.

    What is trained from scratch is told by the scenario itself, and has none.
    """
    variant, task, check = scenario.variant, scenario.task, scenario.quality
    try:
        if isinstance(task, TrainTask) and _from_scratch(variant, task):
            return {}
        found = _identity(variant)
        tags = {**found.digests.tags, **({"revision": found.revision} if found.revision else {})}
        if check is not None and check.reference not in (None, variant):
            digests = _identity(check.reference).digests.tags
            tags |= {REFERENCE_TAG_PREFIX + name: value for name, value in digests.items()}
    except LlmtrackError:
        return dict(UNKNOWN)
    return tags


def _from_scratch(variant: Variant, task: TrainTask) -> bool:
    from llmtrack.train.opening import starts_from_scratch  # needs all that trains

    return starts_from_scratch(variant.model, task.start)


def _identity(variant: Variant) -> ModelIdentity:
    from llmtrack.devices import resolve_device
    from llmtrack.models import load

    # Random weights are drawn on the device that PyTorch runs on.
    device = resolve_device(variant.device) if variant.backend == "torch" else "cpu"
    return load.identify_model(variant.model, variant.revision, device)
