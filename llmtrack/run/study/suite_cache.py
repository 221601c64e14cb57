"""Scenarios shared by several experiments of a suite: measured by each, reused, or pooled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmtrack.experiment import Experiment
from llmtrack.metrics import METRIC_BY_NAME
from llmtrack.run.study.merge import merge_measurements
from llmtrack.run.study.plan import resolved
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import RepeatPolicy, TrainTask
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

MEASURE, REUSE, POOL = MODES = ("measure", "reuse", "pool")


class SuiteCache:
    """Measurements of a suite so far, for experiments with equal scenarios.

    Args:
        mode: `measure`: by each experiment, which shows the noise floor; `reuse`: once, with the most repeats that any
            needs; `pool`: by each, pooling the repeats with the earlier ones.
    """

    def __init__(self, mode: str, experiments: Sequence[Experiment], machine: Mapping[str, str]) -> None:
        self._mode, self._machine = mode, machine
        self._scenarios: dict[Scenario, list[Scenario]] = {}
        self._runs: dict[Scenario, Run] = {}
        self._measured: dict[Scenario, dict[str, Measurement]] = {}
        for scenario in (scenario for experiment in experiments for scenario in experiment.scenarios):
            self._scenarios.setdefault(self._cell(scenario), []).append(scenario)

    def prepared(self, experiment: Experiment) -> Experiment:
        """Return the experiment with reusable scenarios extended to the repeats and quality that any other needs."""
        if self._mode != REUSE:
            return experiment
        return replace(experiment, scenarios=tuple(map(self._for_all, experiment.scenarios)))

    def reused(self, scenarios: Sequence[Scenario]) -> list[Run]:
        """Return the earlier runs of equal scenarios, under their current names."""
        runs = []
        for scenario in scenarios if self._mode == REUSE else ():
            run = self._runs.get(self._cell(scenario))
            if run is not None:
                runs.append(run.as_scenario(scenario.name, baseline=scenario.baseline))
        return runs

    def pooled(self, experiment: str, measurement: Measurement) -> Measurement:
        """Pool a measurement with earlier repeats of an equal scenario; each one's values are kept, too."""
        scenario = measurement.scenario
        if self._mode != POOL or isinstance(scenario.task, TrainTask) or not measurement.samples:
            return measurement
        earlier = self._measured.setdefault(self._cell(scenario), {})
        earlier[f"{experiment}/{scenario.name}"] = measurement
        if len(earlier) == 1:
            return measurement
        pooled = merge_measurements(tuple(earlier.values()), scenario.repeat)
        values = {
            name: {key: measured.metrics[key] for key in measured.samples if METRIC_BY_NAME[key].sampled}
            for name, measured in earlier.items()
        }
        return replace(pooled, facts={**pooled.facts, "pooled": json.dumps(values)}, started_at=measurement.started_at)

    def learn(self, experiment: Experiment, tracked: Runs | None) -> None:
        """Register the tracked runs of an experiment."""
        if tracked is None or self._mode != REUSE:
            return
        cells = {scenario.name: self._cell(scenario) for scenario in experiment.scenarios}
        for run in tracked:
            if run.outcome == "finished" and run.scenario in cells:
                self._runs.setdefault(cells[run.scenario], run)

    def _cell(self, scenario: Scenario) -> Scenario:
        """Return the identity of equal scenarios; trained models are never equal."""
        if isinstance(scenario.task, TrainTask):
            return scenario
        return replace(resolved(scenario, self._machine)[0], repeat=RepeatPolicy(), quality=None)

    def _for_all(self, scenario: Scenario) -> Scenario:
        equal = self._scenarios.get(self._cell(scenario), [scenario])
        most = {
            name: max(getattr(other.repeat, name) for other in equal)
            for name in ("warmup", "min_repeats", "min_seconds", "max_seconds", "max_repeats")
        }
        quality = next((other.quality for other in (scenario, *equal) if other.quality is not None), None)
        return replace(scenario, repeat=replace(scenario.repeat, **most), quality=quality)
