"""Two tokenizers scored, tracked and compared: which figures stand against each other, from the text to the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmtrack.decide.comparing import compare
from llmtrack.engines.scripted import FakeClock
from llmtrack.errors import UsageError
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask
from llmtrack.tracking.write.tracker import Tracker
from llmtrack.worker.perplexity import measure_perplexity
from tests.quality import tokenizers as made
from tests.tracking.samples import ENVIRONMENT

pytestmark = pytest.mark.usefixtures("_clean_environment")

BYTES = made.wrap(made.byte_level(), bos_token="<s>")
# `ab` is one token, so that each token covers twice the text.
PAIRS = made.wrap(made.byte_level(("a", "b")), bos_token="<s>")


def track(tracker: Tracker, engine: made.TokenizingEngine, name: str, task: PerplexityTask) -> str:
    engine._info = replace(engine.info, model_id=name)
    events: list[Event] = []
    measure_perplexity(Scenario("ppl", Variant(model=name), task), task, engine, events.append, FakeClock())
    (done,) = (event for event in events if isinstance(event, Measurement))
    return tracker.log(tracker.start_study("perplexity", "q", {}, ENVIRONMENT), done)


@pytest.mark.slow(1)
def test_as_many_tokens_of_more_text_are_not_compared(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    cut = PerplexityTask(corpus=str(corpus), max_length=20, bos_rule="model")
    # 19 predicted tokens each, of 19 and of 38 bytes.
    one, other = track(tracker, BYTES, "bytes", cut), track(tracker, PAIRS, "pairs", cut)
    for metric in ("perplexity", "loss", "bits_per_byte", "word_perplexity"):
        with pytest.raises(UsageError, match=r"bytes_scored: 19 against 38.*max_length that cuts nothing"):
            compare(one, other, [metric], tracking_uri=uri)


@pytest.mark.slow(1)
def test_all_of_the_text_has_comparable_bits_and_no_comparable_perplexity(
    tracker: Tracker, uri: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    whole = PerplexityTask(corpus=str(corpus), bos_rule="model")
    one, other = track(tracker, BYTES, "bytes", whole), track(tracker, PAIRS, "pairs", whole)
    (found,) = compare(one, other, ["bits_per_byte"], tracking_uri=uri).to_dict("records")
    # 1 nat a token: 80 tokens against 40.
    assert (found["verdict"], found["words"]) == ("better", "lower: -50 %")
    with pytest.raises(UsageError, match=r"the tokenizers differ .tokens_scored: 80 against 40"):
        compare(one, other, ["perplexity"], tracking_uri=uri)


@pytest.mark.slow(2)
def test_one_tokenizer_under_two_names_is_compared(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    cut = PerplexityTask(corpus=str(corpus), max_length=20)
    one, other = track(tracker, BYTES, "bytes", cut), track(tracker, BYTES, "again", cut)
    assert list(compare(one, other, ["perplexity"], tracking_uri=uri)["verdict"]) == ["same"]
