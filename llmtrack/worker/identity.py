"""Which model a scenario would measure now, told by its files and without loading it."""

from __future__ import annotations

from llmtrack.errors import LlmtrackError
from llmtrack.scenario import Scenario, TrainTask

UNKNOWN = {"weights_digest": "unknown"}
"""The identity of a model that cannot be found: equal to that of no run."""


def identify(scenario: Scenario) -> dict[str, str]:
    """Return the tags that a run of a scenario would have of its model: its digests, and a hub model's commit.

    What is trained from scratch is told by the scenario itself, and has none.
    """
    from llmtrack.devices import resolve_device
    from llmtrack.models import load
    from llmtrack.train.session import starts_from_scratch

    variant, task = scenario.variant, scenario.task
    try:
        if isinstance(task, TrainTask) and starts_from_scratch(variant.model, task.start):
            return {}
        # Random weights are drawn on the device that PyTorch runs on.
        device = resolve_device(variant.device) if variant.backend == "torch" else "cpu"
        found = load.identify(variant.model, variant.revision, device)
    except LlmtrackError:
        return dict(UNKNOWN)
    return {**found.digests.tags, **({"revision": found.revision} if found.revision else {})}
