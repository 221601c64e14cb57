"""Conformance tests of an experiment."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import click

from llmtrack.experiment import Declaration, Experiment
from llmtrack.run.settings import HereOptions
from llmtrack.spec.options import parameters
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import from_json, to_json


class ExperimentConformance:
    """Base class of an experiment's tests: set `module` and run pytest.

    Attributes:
        module: the module named by the entry point.
        config: parameters for the test, if building with the defaults would load or download something.
    """

    module: ModuleType
    config: dict[str, Any] = {}  # noqa: RUF012 - a class of tests sets it

    @property
    def declared(self) -> Declaration[Any]:
        """The module's declaration."""
        declared: Declaration[Any] = self.module.DECLARED
        return declared

    def build(self) -> Experiment:
        """Build the experiment under test."""
        return self.declared.experiment(self.declared.config(**self.config))

    def test_it_declares_itself(self) -> None:
        """A valid name, a question, and a command."""
        assert isinstance(self.declared, Declaration)
        assert self.declared.name.isidentifier()
        assert self.declared.question.endswith("?")
        assert isinstance(self.module.main, click.Command)

    def test_parameters_include_the_common_ones(self) -> None:
        """They include the common ones, and each has a help."""
        declared = {parameter.name: parameter for parameter in parameters(self.declared.config)}
        assert {parameter.name for parameter in parameters(HereOptions)} <= set(declared)
        assert all(parameter.option.help for parameter in declared.values())

    def test_scenario_names_are_unique(self) -> None:
        """Unique names, and at most one baseline."""
        scenarios = self.build().scenarios
        names = [scenario.name for scenario in scenarios]
        assert names
        assert len(set(names)) == len(names)
        assert sum(scenario.baseline for scenario in scenarios) <= 1

    def test_scenario_ids_are_reproducible(self) -> None:
        """Scenario ids are reproducible, also through JSON: `resume` relies on them."""
        first, second = self.build().scenarios, self.build().scenarios
        assert [scenario.scenario_id for scenario in first] == [scenario.scenario_id for scenario in second]
        for scenario in first:
            assert from_json(to_json(scenario), Scenario) == scenario

    def test_settings_are_tracked(self) -> None:
        """As scalars, by parameter name."""
        experiment = self.build()
        assert experiment.name == self.declared.name
        assert all(isinstance(value, (str, int, float, bool)) for value in experiment.settings.values())
        assert set(experiment.asked) <= {parameter.name for parameter in parameters(self.declared.config)}
