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
        made = super().generate(request, on_step)
        if self.calls < 3:
            return made
        return type(made)(tuple((ord("z"), *row[1:]) for row in made.new_ids))


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
    (made,) = timed("abcd", scripts=[Script(seconds, 0.005) for seconds in (0.030, 0.060, 0.040)])
    assert (made.prompt, len(made.text), made.prompt_tokens, made.new_tokens) == ("abcd", 5, 4, 5)
    assert (made.rows, made.repeat) == (1, 3)
    assert (made.seconds, made.first_token_s) == pytest.approx((0.060, 0.040))
    assert before - 0.060 <= made.started_at <= time.time() - 0.060


def test_equal_outputs_are_listed_once():
    made = timed("ab", "abc", "ab")
    assert [(each.prompt, each.rows, each.repeat) for each in made] == [("ab", 3, 1), ("abc", 3, 1)]
    made = timed("ab", "abc", engine=Changing)
    assert [(each.prompt, each.repeat) for each in made] == [("ab", 1), ("abc", 1), ("ab", 3), ("abc", 3)]
    assert len({(each.prompt, each.text) for each in made}) == 4


def test_each_call_has_its_own_times():
    scripts = [Script(seconds, 0.005) for seconds in (0.030, 0.130)] * 3
    made = timed("ab", "abc", batch_size=1, scripts=scripts)
    assert [each.first_token_s for each in made] == pytest.approx([0.030, 0.130])
    assert made[1].started_at - made[0].started_at == pytest.approx(0.050, abs=1e-5)


def test_number_and_length_of_generations_are_bounded(monkeypatch):
    monkeypatch.setattr(generate, "_LONGEST", 8)
    made = timed(*(f"{number:09}" for number in range(MOST_GENERATIONS + 1)))
    assert len(made) == MOST_GENERATIONS
    assert made[0].prompt == "0000 ..."


def test_a_prompt_is_recorded_as_the_model_read_it():
    (event,) = (each for each in measure(Loader(), generating("long")) if isinstance(each, Measurement))
    assert [each.prompt for each in event.generations] == list(event.scenario.task.prompts)
    (event,) = (
        each for each in measure(Loader(), generating("long", prompt_tokens=11)) if isinstance(each, Measurement)
    )
    assert [each.prompt_tokens for each in event.generations] == [11]
    assert len(event.generations[0].prompt) == 11
