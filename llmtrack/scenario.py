"""Scenarios: the public names of `llmtrack.spec.scenario`."""

from llmtrack.spec.scenario import Scenario as Scenario
from llmtrack.spec.scenario import Variant as Variant
