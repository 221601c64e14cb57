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

    def test_its_parameters_say_how_a_study_is_run(self) -> None:
        """They include the common ones, and each has a help."""
        own = {each.name: each for each in parameters(self.declared.config)}
        assert {each.name for each in parameters(HereOptions)} <= set(own)
        assert all(each.option.help for each in own.values())

    def test_its_scenarios_can_be_told_apart(self) -> None:
        """Unique names, and at most one baseline."""
        scenarios = self.build().scenarios
        names = [each.name for each in scenarios]
        assert names
        assert len(set(names)) == len(names)
        assert sum(each.baseline for each in scenarios) <= 1

    def test_the_same_parameters_ask_for_the_same(self) -> None:
        """Scenario ids are reproducible, also through JSON: `resume` relies on them."""
        first, again = self.build(), self.build()
        assert [each.scenario_id for each in first.scenarios] == [each.scenario_id for each in again.scenarios]
        for each in first.scenarios:
            assert from_json(to_json(each), Scenario) == each

    def test_what_was_asked_is_tracked(self) -> None:
        """As scalars, by parameter name."""
        experiment = self.build()
        assert experiment.name == self.declared.name
        assert all(isinstance(value, (str, int, float, bool)) for value in experiment.settings.values())
        assert set(experiment.asked) <= {each.name for each in parameters(self.declared.config)}
