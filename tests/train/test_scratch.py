"""A model trained from scratch is identified by its weights, config and tokenizer, like one from a folder."""

from __future__ import annotations

import pytest

from llmtrack.models import probe_cache
from llmtrack.models.digests import tokenizer_digest
from llmtrack.spec.task import TrainTask
from llmtrack.train.data import Split
from llmtrack.train.scratch import fresh_engine


@pytest.mark.slow(1)
def test_a_fresh_model_has_digests_of_weights_config_and_tokenizer(tmp_path, own_cache):
    """They also identify the answers of its probes, which are asked once."""

    def fresh(text, seed=0):
        split = Split((text * 40,), (text,), "document")
        return fresh_engine("synthetic:tiny", TrainTask(output=str(tmp_path), seed=seed), split, "cpu")

    def answers():
        return {path.name for path in probe_cache.folder().iterdir()}

    engine = fresh("the tide comes in. ")
    tags, first = engine.info.tags, answers()
    assert first
    assert sorted(tags) == ["config_digest", "tokenizer_digest", "weights_digest"]
    assert fresh("the tide comes in. ").info.tags == tags
    assert answers() == first
    engine.tokenizer.save_pretrained(tmp_path)
    assert tokenizer_digest(tmp_path) == tags["tokenizer_digest"]
    assert fresh("eine andere Sprache hat andere Silben. ").info.tags["tokenizer_digest"] != tags["tokenizer_digest"]
    assert len(answers()) == 2 * len(first)
    seeded = fresh("the tide comes in. ", seed=1).info.tags
    assert len(answers()) == 3 * len(first)
    assert {name for name in seeded if seeded[name] != tags[name]} == {"weights_digest"}
