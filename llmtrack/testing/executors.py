"""Conformance tests of an executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from llmtrack.run.executors.executor import METHODS, Executor
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy


class ExecutorConformance:
    """Base class of an executor's tests: implement `make` and run pytest.

    Attributes:
        variant: model to measure; small.
    """

    variant = Variant("synthetic:tiny", device="cpu")

    def make(self) -> Executor:
        """Return the executor."""
        raise NotImplementedError("a class of conformance tests says how its executor is made")

    @pytest.fixture(scope="class")
    @classmethod
    def executor(cls) -> Iterator[Executor]:
        """The executor under test."""
        executor = cls().make()
        yield executor
        executor.close()

    def scenario(self, name: str, new_tokens: int = 3) -> Scenario:
        """Return a short scenario."""
        task = GenerateTask(("abcd",), max_new_tokens=new_tokens)
        return Scenario(name, self.variant, task, RepeatPolicy(0, 2, 0, 2))

    def test_it_has_all_that_an_executor_has(self, executor: Executor) -> None:
        """All methods."""
        assert [name for name in METHODS if not callable(getattr(executor, name, None))] == []

    def test_it_describes_the_machine_that_measures(self, executor: Executor) -> None:
        """A mapping of texts that includes the devices."""
        facts = executor.machine()
        assert all(isinstance(each, str) for pair in facts.items() for each in pair), facts
        assert "cpu" in facts["devices"].split(",")

    def test_it_refuses_no_backend_that_is_there(self, executor: Executor) -> None:
        """`check` accepts measurable scenarios."""
        executor.check((self.scenario("a"),))

    def test_it_identifies_the_model_of_a_scenario(self, executor: Executor) -> None:
        """A reproducible mapping of texts, which `resume` relies on."""
        tags = executor.identify(self.scenario("a"))
        assert all(isinstance(each, str) for pair in tags.items() for each in pair), tags
        assert executor.identify(self.scenario("another name")) == tags

    def test_each_scenario_has_one_outcome_as_it_ends(self, executor: Executor) -> None:
        """In any order, with the requested scenario."""
        wanted = {"a": 3, "b": 5}
        scenarios = [self.scenario(name, new_tokens) for name, new_tokens in wanted.items()]
        found = outcomes(executor, scenarios)
        assert sorted(each.scenario.name for each in found) == sorted(wanted)
        assert {each.scenario.scenario_id for each in found} == {each.scenario_id for each in scenarios}
        for outcome in found:
            assert isinstance(outcome, Measurement), outcome
            assert outcome.metrics["tokens_generated"] == wanted[outcome.scenario.name]

    def test_one_that_fails_costs_no_other(self, executor: Executor) -> None:
        """A prompt that leaves no room in the context fails with its kind."""
        found = outcomes(executor, [self.scenario("too long", 10**6), self.scenario("after it")])
        assert {each.scenario.name: type(each) for each in found} == {
            "too long": Failure,
            "after it": Measurement,
        }
        (failed,) = (each for each in found if isinstance(each, Failure))
        assert failed.kind == "too_long"
        assert failed.reason

    def test_it_can_be_closed_twice(self) -> None:
        """Closing is idempotent."""
        executor = self.make()
        executor.close()
        executor.close()


def outcomes(executor: Executor, scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Return the outcomes of scenarios, in order of completion."""
    events: list[Event] = []
    executor.run(scenarios, events.append)
    return [each for each in events if isinstance(each, (Measurement, Failure))]
