"""Generations for traces: each output once, with the times of the most typical repeat."""

from __future__ import annotations

import time

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure.timing import Arm, requests_for, time_arms
from llmtrack.spec.outcome import MOST_GENERATIONS, Measurement
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.worker import generate
from llmtrack.worker.generate import generations_of
from tests.run.scenarios import generating
from tests.worker.test_measuring import Loader, measure

POLICY = RepeatPolicy(warmup=0, min_repeats=3, min_seconds=0, max_repeats=3)


class Changing(ScriptedEngine):
    """Generates another text in its last call, as greedy decoding does on some devices."""

    def generate(self, request, on_step):
        generated = super().generate(request, on_step)
        if self.calls < 3:
            return generated
        return type(generated)(tuple((ord("z"), *row[1:]) for row in generated.new_ids))


def timed(*prompts: str, engine=ScriptedEngine, batch_size=None, scripts=()):
    clock = FakeClock(100.0)
    loaded = engine(clock, *(scripts or [Script(0.030, 0.005)]))
    task = GenerateTask(prompts, max_new_tokens=5, batch_size=batch_size)
    ids = [tuple(loaded.encode(text)) for text in prompts]
    ((_, timing),) = time_arms(loaded, {"": Arm(requests_for(task, ids), POLICY)}, clock)
    return generations_of(loaded, prompts, ids, timing, clock)


def test_a_generation_has_the_times_of_the_median_repeat():
    # 30 + 4 x 5 = 50 ms, 60 + 4 x 5 = 80 ms, 40 + 4 x 5 = 60 ms; the third begins after 130 ms and the clock ends at 190.
    before = time.time()
    (generation,) = timed("abcd", scripts=[Script(seconds, 0.005) for seconds in (0.030, 0.060, 0.040)])
    assert (generation.prompt, len(generation.text), generation.prompt_tokens, generation.new_tokens) == (
        "abcd",
        5,
        4,
        5,
    )
    assert (generation.rows, generation.repeat) == (1, 3)
    assert (generation.seconds, generation.first_token_s) == pytest.approx((0.060, 0.040))
    assert before - 0.060 <= generation.started_at <= time.time() - 0.060


def test_equal_outputs_are_listed_once():
    generations = timed("ab", "abc", "ab")
    assert [(generation.prompt, generation.rows, generation.repeat) for generation in generations] == [
        ("ab", 3, 1),
        ("abc", 3, 1),
    ]
    generations = timed("ab", "abc", engine=Changing)
    assert [(generation.prompt, generation.repeat) for generation in generations] == [
        ("ab", 1),
        ("abc", 1),
        ("ab", 3),
        ("abc", 3),
    ]
    assert len({(generation.prompt, generation.text) for generation in generations}) == 4


def test_each_call_has_its_own_times():
    scripts = [Script(seconds, 0.005) for seconds in (0.030, 0.130)] * 3
    generations = timed("ab", "abc", batch_size=1, scripts=scripts)
    assert [generation.first_token_s for generation in generations] == pytest.approx([0.030, 0.130])
    assert generations[1].started_at - generations[0].started_at == pytest.approx(0.050, abs=1e-5)


def test_number_and_length_of_generations_are_bounded(monkeypatch):
    monkeypatch.setattr(generate, "_LONGEST", 8)
    generations = timed(*(f"{number:09}" for number in range(MOST_GENERATIONS + 1)))
    assert len(generations) == MOST_GENERATIONS
    assert generations[0].prompt == "0000 ..."


def test_a_prompt_is_recorded_as_the_model_read_it():
    (event,) = (event for event in measure(Loader(), generating("long")) if isinstance(event, Measurement))
    assert [generation.prompt for generation in event.generations] == list(event.scenario.task.prompts)
    (event,) = (
        event for event in measure(Loader(), generating("long", prompt_tokens=11)) if isinstance(event, Measurement)
    )
    assert [generation.prompt_tokens for generation in event.generations] == [11]
    assert len(event.generations[0].prompt) == 11
