"""Default ids of every experiment: python -m tests.experiments.pins > tests/experiments/pins.json.

A changed id separates old runs from new ones and causes them to be measured again, so pins.json changes only deliberately,
and the commit says which id and why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from experiments import backends, quantization
from experiments.suite import NAMES, Config, experiments_of
from llmtrack.experiment import Experiment
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import workload_id
from llmtrack.tracking.write.records import StudyContext, scenario_record

ROOT = Path(__file__).resolve().parents[2]
# The defaults depend on what is installed.
RECIPES = (
    "torch/bfloat16",
    "onnx/float32",
    "onnx/int8-dynamic",
    "onnx/int8-mixed",
    "onnx/int8-static",
    "onnx/int8-weight-only",
    "onnx/int4-weight-only",
)
RUNTIME_RECIPES = ("torch/bfloat16", "onnx/int8-weight-only", "genai/int4", "openvino/int8")


def default_experiment(name: str, quick: bool) -> Experiment:
    """Build an experiment with its default options."""
    if name == "quantization" and not quick:
        return quantization.build(quantization.Config(recipes=RECIPES))
    if name == "backends":
        full = backends.Config(recipes=RUNTIME_RECIPES)
        return backends.build(backends.quick(full) if quick else full)
    with patch.object(quantization, "everything", return_value=(quantization.BASELINE, *RECIPES)):
        (experiment,) = experiments_of([name], Config(quick=quick))
    return experiment


def ids(scenario: Scenario) -> str:
    """Return the ids of a scenario, of its workload and of a run's record."""
    work = workload_id(scenario.task, "corpus")
    outcome = Measurement(scenario, work, facts={"dtype": scenario.variant.dtype}, metrics={"loss": 1.0})
    record = scenario_record(outcome, StudyContext("study", "experiment"))
    return f"{scenario.scenario_id} {work} {record.record_id}"


def pins() -> dict[str, Any]:
    """Return all ids by experiment and scenario, and all parameters of MLproject with their defaults."""
    project = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
    return {
        "ids": {
            f"{name} {'quick' if quick else 'full'}": {
                scenario.name: ids(scenario) for scenario in default_experiment(name, quick).scenarios
            }
            for name in NAMES
            for quick in (False, True)
        },
        "parameters": {
            name: {key: parameter["default"] for key, parameter in entry["parameters"].items()}
            for name, entry in project["entry_points"].items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(pins(), indent=1, sort_keys=True))
