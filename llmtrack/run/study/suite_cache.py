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

MEASURE, REUSE, POOL = HOW = ("measure", "reuse", "pool")


class SuiteCache:
    """Measurements of a suite so far, for experiments with equal scenarios.

    Args:
        how: `measure`: by each experiment, which shows the noise floor; `reuse`: once, with the most repeats that any
            needs; `pool`: by each, pooling the repeats with the earlier ones.
        experiments: all experiments of the suite, as far as known.
        machine: facts of the measuring machine.
    """

    def __init__(self, how: str, experiments: Sequence[Experiment], machine: Mapping[str, str]) -> None:
        self._how, self._machine = how, machine
        self._asked: dict[Scenario, list[Scenario]] = {}
        self._runs: dict[Scenario, Run] = {}
        self._measured: dict[Scenario, dict[str, Measurement]] = {}
        for each in (scenario for experiment in experiments for scenario in experiment.scenarios):
            self._asked.setdefault(self._cell(each), []).append(each)

    def prepared(self, experiment: Experiment) -> Experiment:
        """Return the experiment with reusable scenarios extended to the repeats and quality that any experiment needs."""
        if self._how != REUSE:
            return experiment
        return replace(experiment, scenarios=tuple(map(self._for_all, experiment.scenarios)))

    def reused(self, scenarios: Sequence[Scenario]) -> list[Run]:
        """Return the earlier runs of equal scenarios, under their current names."""
        found = []
        for each in scenarios if self._how == REUSE else ():
            run = self._runs.get(self._cell(each))
            if run is not None:
                found.append(run.as_scenario(each.name, baseline=each.baseline))
        return found

    def pooled(self, experiment: str, measurement: Measurement) -> Measurement:
        """Pool a measurement with earlier repeats of an equal scenario; each one's values are kept, too."""
        scenario = measurement.scenario
        if self._how != POOL or isinstance(scenario.task, TrainTask) or not measurement.samples:
            return measurement
        before = self._measured.setdefault(self._cell(scenario), {})
        before[f"{experiment}/{scenario.name}"] = measurement
        if len(before) == 1:
            return measurement
        whole = merge_measurements(tuple(before.values()), scenario.repeat)
        own = {
            name: {key: each.metrics[key] for key in each.samples if METRIC_BY_NAME[key].sampled}
            for name, each in before.items()
        }
        return replace(whole, facts={**whole.facts, "pooled": json.dumps(own)}, started_at=measurement.started_at)

    def learn(self, experiment: Experiment, tracked: Runs | None) -> None:
        """Register the tracked runs of an experiment."""
        if tracked is None or self._how != REUSE:
            return
        cells = {each.name: self._cell(each) for each in experiment.scenarios}
        for run in tracked:
            if run.outcome == "finished" and run.scenario in cells:
                self._runs.setdefault(cells[run.scenario], run)

    def _cell(self, scenario: Scenario) -> Scenario:
        """Return the identity of equal scenarios; trained models are never equal."""
        if isinstance(scenario.task, TrainTask):
            return scenario
        return replace(resolved(scenario, self._machine)[0], repeat=RepeatPolicy(), quality=None)

    def _for_all(self, scenario: Scenario) -> Scenario:
        alike = self._asked.get(self._cell(scenario), [scenario])
        most = {
            name: max(getattr(each.repeat, name) for each in alike)
            for name in ("warmup", "min_repeats", "min_seconds", "max_seconds", "max_repeats")
        }
        quality = next((each.quality for each in (scenario, *alike) if each.quality is not None), None)
        return replace(scenario, repeat=replace(scenario.repeat, **most), quality=quality)
