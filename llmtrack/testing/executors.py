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
        raise NotImplementedError("implement make() in your class of conformance tests")

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

    def test_interface_is_complete(self, executor: Executor) -> None:
        """All methods."""
        assert [name for name in METHODS if not callable(getattr(executor, name, None))] == []

    def test_it_describes_the_measuring_machine(self, executor: Executor) -> None:
        """A mapping of texts that includes the devices."""
        facts = executor.machine()
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in facts.items()), facts
        assert "cpu" in facts["devices"].split(",")

    def test_available_backends_are_accepted(self, executor: Executor) -> None:
        """`check` accepts measurable scenarios."""
        executor.check((self.scenario("a"),))

    def test_model_tags_are_reproducible(self, executor: Executor) -> None:
        """A reproducible mapping of texts, which `resume` relies on."""
        tags = executor.identify(self.scenario("a"))
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in tags.items()), tags
        assert executor.identify(self.scenario("another name")) == tags

    def test_each_scenario_has_one_outcome(self, executor: Executor) -> None:
        """In any order, with the requested scenario."""
        new_tokens = {"a": 3, "b": 5}
        scenarios = [self.scenario(name, count) for name, count in new_tokens.items()]
        measured = outcomes(executor, scenarios)
        assert sorted(outcome.scenario.name for outcome in measured) == sorted(new_tokens)
        assert {outcome.scenario.scenario_id for outcome in measured} == {
            scenario.scenario_id for scenario in scenarios
        }
        for outcome in measured:
            assert isinstance(outcome, Measurement), outcome
            assert outcome.metrics["tokens_generated"] == new_tokens[outcome.scenario.name]

    def test_a_failed_scenario_does_not_affect_others(self, executor: Executor) -> None:
        """A prompt that leaves no room in the context fails with its kind."""
        results = outcomes(executor, [self.scenario("too long", 10**6), self.scenario("after it")])
        assert {result.scenario.name: type(result) for result in results} == {
            "too long": Failure,
            "after it": Measurement,
        }
        (failed,) = (result for result in results if isinstance(result, Failure))
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
    return [event for event in events if isinstance(event, (Measurement, Failure))]
