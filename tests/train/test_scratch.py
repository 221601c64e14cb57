"""A model that is trained from scratch is told by its weights, config and tokenizer, as one from a folder is."""

from __future__ import annotations

import pytest

from llmtrack.models.digests import tokenizer_digest
from llmtrack.spec.task import TrainTask
from llmtrack.train.data import Split
from llmtrack.train.scratch import fresh_engine


@pytest.mark.slow(1)
def test_a_fresh_model_has_all_three_digests(tmp_path):
    def fresh(text, seed=0):
        split = Split((text * 40,), (text,), "document")
        return fresh_engine("synthetic:tiny", TrainTask(output=str(tmp_path), seed=seed), split, "cpu")

    one, again = fresh("the tide comes in. "), fresh("the tide comes in. ")
    assert sorted(one.info.tags) == ["config_digest", "tokenizer_digest", "weights_digest"]
    assert one.info.tags == again.info.tags
    one.tokenizer.save_pretrained(tmp_path)
    assert tokenizer_digest(tmp_path) == one.info.tags["tokenizer_digest"]
    other = fresh("eine andere Sprache hat andere Silben. ")
    assert other.info.tags["tokenizer_digest"] != one.info.tags["tokenizer_digest"]
    seeded = fresh("the tide comes in. ", seed=1).info.tags
    assert {name for name in seeded if seeded[name] != one.info.tags[name]} == {"weights_digest"}
