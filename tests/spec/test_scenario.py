"""Scenarios and outcomes survive JSON and pickle, and their ids depend on the right fields."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.spec.outcome import Failure, Measurement, Outcome, Summary
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.serialization import digest, from_json, to_json
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, workload_id

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8)
scalars = st.one_of(texts, st.integers(), finite, st.booleans())
tasks = st.one_of(
    st.builds(
        GenerateTask,
        prompts=st.lists(texts, min_size=1, max_size=3).map(tuple),
        prompt_tokens=st.none() | st.integers(1, 999),
        max_new_tokens=st.integers(1, 99),
        use_cache=st.booleans(),
        padding_side=st.sampled_from(["left", "right"]),
        ignore_eos=st.booleans(),
    ),
    st.builds(PerplexityTask, corpus=texts, max_length=st.integers(2, 99), verbose=st.booleans()),
)
variants = st.builds(Variant, model=texts, revision=st.none() | texts, dtype=texts)
policies = st.builds(RepeatPolicy, warmup=st.integers(0, 3), min_seconds=st.floats(0, 9))
scenarios = st.builds(Scenario, texts, variants, tasks, policies, st.booleans())
summaries = st.builds(
    Summary,
    n=st.integers(1, 99),
    median=finite,
    ci_low=finite,
    ci_high=finite,
    mean=finite,
    p90=st.none() | finite,
)
series = st.dictionaries(texts, st.lists(finite, max_size=3).map(tuple), max_size=2)
measurements = st.builds(
    Measurement,
    scenario=scenarios,
    workload_id=texts,
    facts=st.dictionaries(texts, scalars, max_size=3),
    metrics=st.dictionaries(texts, finite, max_size=3),
    summaries=st.dictionaries(texts, summaries, max_size=2),
    samples=series,
    warnings=st.lists(texts, max_size=2).map(tuple),
    sample_text=st.none() | texts,
    tags=st.dictionaries(texts, texts, max_size=2),
    series=series,
    started_at=finite,
    ended_at=finite,
)
failures = st.builds(Failure, scenarios, texts, texts, texts, st.dictionaries(texts, scalars, max_size=2))


@pytest.mark.slow(1)
@given(st.one_of(measurements, failures))
def test_outcomes_survive_json_and_pickle(outcome):
    text = json.dumps(to_json(outcome, Outcome))
    restored = from_json(json.loads(text), Outcome)
    assert restored == outcome
    assert type(restored.scenario.task) is type(outcome.scenario.task)
    assert {k: type(v) for k, v in restored.facts.items()} == {k: type(v) for k, v in outcome.facts.items()}
    assert pickle.loads(pickle.dumps(outcome)) == outcome


SCENARIO = Scenario("one", Variant("m"), GenerateTask(("a", "b"), max_new_tokens=4))


def test_scenarios_are_frozen_and_hashable():
    with pytest.raises(FrozenInstanceError):
        SCENARIO.name = "two"
    assert len({SCENARIO, replace(SCENARIO)}) == 1


def test_the_scenario_id_does_not_depend_on_the_name():
    assert replace(SCENARIO, name="two", baseline=True).scenario_id == SCENARIO.scenario_id
    for other in (
        replace(SCENARIO, variant=Variant("n")),
        replace(SCENARIO, task=replace(SCENARIO.task, use_cache=False)),
        replace(SCENARIO, repeat=RepeatPolicy(min_repeats=6)),
        replace(SCENARIO, task=PerplexityTask()),
    ):
        assert other.scenario_id != SCENARIO.scenario_id


def test_the_workload_id_depends_on_the_work_only():
    task, scoring = SCENARIO.task, PerplexityTask()
    same = workload_id(task)
    assert workload_id(replace(task, use_cache=False, padding_side="right")) == same
    assert workload_id(replace(task, max_new_tokens=5)) != same
    assert workload_id(replace(task, ignore_eos=False)) != same
    assert workload_id(replace(task, prompts=("a", "c"))) != same
    scored = workload_id(scoring, "d1")
    assert workload_id(replace(scoring, batch_size=9, padding_side="left", verbose=True), "d1") == scored
    assert workload_id(scoring, "d2") != scored
    assert workload_id(replace(scoring, max_length=9), "d1") != scored


def test_a_digest_is_stable():
    assert digest({"b": [1, "é"], "a": None}) == digest({"a": None, "b": [1, "é"]})
    assert digest(["x"]) == "cd65ea2c2ad99e94"


@pytest.mark.slow(1)
def test_ids_are_the_same_in_every_process():
    code = (
        "import sys; from llmtrack.spec.scenario import *; from llmtrack.spec.task import *;"
        "print(Scenario('x', Variant('m'), GenerateTask(('a', 'b'), max_new_tokens=4)).scenario_id,"
        "'torch' in sys.modules, 'mlflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [SCENARIO.scenario_id, "False", "False"]
