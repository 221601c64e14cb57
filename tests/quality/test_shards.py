"""Sharded scoring: how a text is split, and that merged results equal those of a single worker exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.errors import ScenarioError
from llmtrack.quality.perplexity import prepare, score_shard, score_texts
from llmtrack.quality.shards import merge, plan_batches, share_out
from llmtrack.spec.scores import Part, Scored, Text
from llmtrack.spec.serialization import from_json, to_json
from llmtrack.spec.task import PerplexityTask, ShardTask
from tests.engines.models import small

TEXTS = [f"The {'harbour ' * (number % 5)}wakes before the town {'é' * number}." for number in range(9)]
TASKS = {
    "documents": PerplexityTask(max_length=32, batch_size=2),
    "rolling": PerplexityTask(
        protocol="rolling", max_length=24, stride=7, bos_rule="model", batch_size=3, padding_side="left"
    ),
    "auto": PerplexityTask(max_length=64, batch_size=None),
}


def test_batches_are_those_of_a_single_worker():
    assert plan_batches([5, 4, 3], 2, 100) == [range(2), range(2, 3)]
    # At most 8 tokens a batch, pads included: two rows of 4, then three of 2.
    assert plan_batches([4, 4, 2, 2, 2], None, 8) == [range(2), range(2, 5)]
    assert plan_batches([9, 1], None, 8) == [range(1), range(1, 2)], "a row over the budget is a batch of its own"


def test_the_most_expensive_batch_goes_to_the_cheapest_shard():
    # 8 | 4 + 4, then 3 to the first of equals, and 1 to the other.
    assert share_out([8, 4, 4, 3, 1], 2) == [[0, 3], [1, 2, 4]]
    assert share_out([5], 3) == [[0], [], []]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 9))
def test_every_batch_is_in_one_shard_and_shards_differ_by_at_most_a_batch(costs, of):
    shards = share_out(costs, of)
    assert sorted(batch for shard in shards for batch in shard) == list(range(len(costs)))
    loads = [sum(costs[batch] for batch in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(costs, default=0)
    assert share_out(costs, of) == shards


WHOLE = Text("documents", 3, 8, 2, 0, 0, 0, 1, 0, "t", "u", ("1: a", "2: b", "3: c"))
# Documents of 2, 1 and 1 predicted tokens, longest first, two to a batch.
FIRST = Scored(rows=(2, 0), nats=(3.0, 0.5), tokens=(2, 1), losses=(3.5 / 3,), read=((2, 1),))
SECOND = Scored(rows=(1,), nats=(4.5,), tokens=(1,), losses=(4.5,), read=((1,),))


def test_merged_scores_by_hand():
    quality = merge([Part(WHOLE, 2, {1: SECOND}, 1.0), Part(WHOLE, 2, {0: FIRST}, 1.0)])
    assert quality.loss == 8.0 / 4
    assert quality.perplexity == math.exp(2.0)
    assert quality.bits_per_byte == 8.0 / math.log(2) / 8
    assert quality.word_perplexity == math.exp(4.0)
    assert (quality.documents_scored, quality.documents_skipped, quality.tokens_scored) == (3, 1, 4)
    assert quality.batch_losses == (3.5 / 3, 4.5), "in the order of a single worker"
    assert quality.batch_size == 2
    assert [(item.name, item.values["loss"]) for item in quality.items] == [("1: a", 0.5), ("2: b", 4.5), ("3: c", 1.5)]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Part(WHOLE, 2, {0: FIRST}, 1.0)], r"of 2 batches, workers scored \[0\]"),
        ([Part(WHOLE, 2, {0: FIRST}, 1.0), Part(WHOLE, 2, {0: FIRST, 1: SECOND}, 1.0)], "of 2 batches"),
        ([Part(WHOLE, 1, {0: FIRST}, 1.0)], "2 of 3 rows"),
        (
            [Part(WHOLE, 2, {0: FIRST}, 1.0), Part(replace(WHOLE, tokens_digest="x"), 2, {1: SECOND}, 1.0)],
            "workers tokenized or batched the text differently",
        ),
    ],
)
def test_missing_repeated_or_foreign_batches_are_refused(parts, message):
    with pytest.raises(ScenarioError, match=message):
        merge(parts)


@cache
def tiny():
    return small("llama", num_hidden_layers=1, max_position_embeddings=256)


@cache
def scored_alone(name):
    """Return the result of a single worker, and each batch as a separate part."""
    task, engine = TASKS[name], tiny()
    prepared = prepare(engine, TEXTS, task)
    parts = []
    for number in range(5):
        batches, of = score_shard(engine, prepared, ShardTask(**vars(task), number=number, of=5))
        parts += [Part(prepared.text, of, {key: scored}, 0.0) for key, scored in batches.items()]
    return score_texts(engine, TEXTS, task), parts


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_sharding_in_any_order_equals_a_single_worker(name, data):
    expected, parts = scored_alone(name)
    shards: dict[int, list[Part]] = {}
    for part in data.draw(st.permutations(parts)):
        shards.setdefault(data.draw(st.integers(0, 3)), []).append(part)
    merged = [
        Part(shard[0].text, shard[0].of, {key: v for part in shard for key, v in part.batches.items()}, 0.0)
        for shard in shards.values()
    ]
    # Serialized, as parts are between processes.
    assert merge([from_json(to_json(part), Part) for part in merged]) == expected
