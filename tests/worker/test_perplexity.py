"""Settings of a perplexity task: validation, workload ids, and what is tracked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from experiments import perplexity
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.metrics import METRIC_BY_NAME, PARAM_BY_NAME
from llmtrack.spec.events import Event
from llmtrack.spec.options import config_from
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.serialization import from_json, to_json
from llmtrack.spec.task import PerplexityTask, workload_id
from llmtrack.tracked.run import FINISHED, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.write.records import params_of
from llmtrack.worker.perplexity import measure_perplexity
from tests.quality.tokenizers import SlowTokenizer, TokenizingEngine, word_piece, wrap

ROLLING = PerplexityTask(protocol="rolling", max_length=64, stride=16, bos_rule="none", max_tokens=1000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "sliding"}, "no protocol 'sliding': use one of documents, rolling"),
        ({"bos_rule": "yes"}, "no bos_rule 'yes': use one of tokenizer, model, none"),
        ({"padding_side": "middle"}, "no padding_side 'middle': use one of right, left"),
        ({"protocol": "rolling", "stride": 513}, "stride 513 is not possible: use 1 to max_length, which is 512"),
        ({"protocol": "rolling", "stride": -1}, "stride -1 is not possible"),
        ({"protocol": "rolling", "max_tokens": 1}, "max_tokens 1 is not possible: use 2 or more, or 0 for all"),
        ({"protocol": "rolling", "max_tokens": -2}, "max_tokens -2"),
        ({"stride": 8}, "stride belongs to protocol=rolling: leave it 0 with documents"),
        ({"max_tokens": 8}, "max_tokens belongs to protocol=rolling"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PerplexityTask(**settings)
    assert message in str(caught.value)


def test_the_command_refuses_them_in_one_line_with_exit_code_2() -> None:
    result = CliRunner().invoke(perplexity.main, ["--stride", "8"])
    assert result.exit_code == 2
    assert "stride belongs to protocol=rolling" in result.output
    assert "Traceback" not in result.output


def test_a_task_survives_json() -> None:
    assert from_json(to_json(ROLLING), PerplexityTask) == ROLLING


@pytest.mark.parametrize(
    "change",
    [{"max_length": 32}, {"stride": 8}, {"bos_rule": "model"}, {"max_tokens": 999}],
    ids=lambda change: next(iter(change)),
)
def test_another_convention_is_another_workload(change: dict[str, Any]) -> None:
    assert workload_id(replace(ROLLING, **change), "d") != workload_id(ROLLING, "d")


def test_the_protocol_and_the_corpus_are_part_of_the_workload() -> None:
    documents = PerplexityTask(max_length=64)
    assert workload_id(documents, "d") != workload_id(replace(documents, protocol="rolling"), "d")
    assert workload_id(ROLLING, "d") != workload_id(ROLLING, "e")


def test_batching_does_not_change_the_workload() -> None:
    other = replace(ROLLING, batch_size=1, padding_side="left", verbose=True)
    assert workload_id(other, "d") == workload_id(ROLLING, "d")


def test_a_stride_of_zero_is_the_length_of_a_window() -> None:
    plain = replace(ROLLING, stride=0)
    assert plain.window_stride == 64
    assert workload_id(plain, "d") == workload_id(replace(ROLLING, stride=64), "d")
    assert PerplexityTask().window_stride == 0


def measured(task: PerplexityTask, engine: ScriptedEngine | None = None) -> Measurement:
    events: list[Event] = []
    engine = engine or ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    measure_perplexity(Scenario("ppl", Variant(), task), task, engine, events.append, FakeClock())
    (outcome,) = [event for event in events if isinstance(event, Measurement)]
    return outcome


def run(done: Measurement) -> Run:
    """Return the tracked run as a reading sees it."""
    return Run(
        "id",
        status=FINISHED,
        outcome="finished",
        params={**params_of(done.scenario), **done.facts},
        metrics={"score_tokens_per_sec": 1.0, **done.metrics},
    )


@pytest.mark.parametrize("task", [ROLLING, PerplexityTask(max_length=64)], ids=lambda task: task.protocol)
def test_all_tracked_names_are_in_the_table(task: PerplexityTask) -> None:
    outcome = measured(task)
    assert set(outcome.metrics) <= set(METRIC_BY_NAME)
    assert set(params_of(outcome.scenario)) | set(outcome.facts) <= set(PARAM_BY_NAME)


def test_a_stream_counts_windows_and_documents_count_documents() -> None:
    rolling, documents = measured(ROLLING).metrics, measured(PerplexityTask(max_length=64)).metrics
    assert rolling["tokens_scored"] == 999
    assert rolling["windows_scored"] == 1 + -(-(999 - 64) // 16)
    assert "documents_scored" not in rolling
    assert "windows_scored" not in documents
    assert documents["documents_scored"] == 25


def test_tokens_beyond_max_tokens_are_counted_without_a_warning() -> None:
    outcome = measured(ROLLING)
    assert outcome.metrics["tokens_truncated"] > 10_000
    assert not any("cut" in warning for warning in outcome.warnings)


def test_the_effective_stride_is_tracked() -> None:
    assert measured(replace(ROLLING, stride=0)).facts["stride"] == 64
    tracked = perplexity.build(config_from(perplexity.Config, replace(ROLLING, stride=0))).settings
    assert (tracked["stride"], tracked["bos_rule"], tracked["max_tokens"]) == (64, "none", 1000)


def test_the_reading_states_the_convention() -> None:
    lines = perplexity.reading(Runs([run(measured(ROLLING))]))
    digest = measured(ROLLING).facts["corpus_digest"]
    assert "loss 1.0000 ± 0.0000 nats per token" in lines[0]
    assert lines[1] == (
        f"Convention: protocol rolling, corpus builtin ({digest}), windows of 64 tokens with stride 16 over the "
        "first 1000 tokens, BOS rule none; perplexities of another convention are not comparable with it."
    )
    assert "Scored 999 tokens of one stream in 60 windows" in lines[2]
    documents = perplexity.reading(Runs([run(measured(PerplexityTask(max_length=64)))]))
    assert "at most 64 tokens a document, BOS rule tokenizer;" in documents[1]
    assert "of 25 documents" in documents[2]


def test_omitted_and_unknown_tokens_are_counted_and_warned_about(tmp_path: Path) -> None:
    # [CLS] one [UNK], [CLS] [UNK] and a blank row; the NUL goes without a token.
    corpus = tmp_path / "a.jsonl"
    corpus.write_text('"one xyz"\n""\n"\\u0000xy"\n', encoding="utf-8")
    engine = wrap(word_piece(), unk_token="[UNK]")
    outcome = measured(PerplexityTask(corpus=str(corpus)), engine)
    assert outcome.facts["corpus_blank_rows"] == 1
    assert (outcome.metrics["unknown_tokens_scored"], outcome.metrics["tokens_scored"]) == (2, 3)
    assert (outcome.metrics["bytes_scored"], outcome.metrics["bytes_without_token"]) == (9, 1)
    for words in ("1 blank row(s)", "2 of 3 scored tokens", "no token for 1 bytes"):
        assert any(words in warning for warning in outcome.warnings)


def test_an_uncovered_text_is_a_warning(tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("é ab", encoding="utf-8")
    outcome = measured(PerplexityTask(corpus=str(corpus)), TokenizingEngine(SlowTokenizer()))
    assert "bits_per_byte" not in outcome.metrics
    assert "scored_text_digest" not in outcome.facts
    assert perplexity.reading(Runs([run(outcome)]))[0].endswith("perplexity 2.718.")
    assert any("does not report which text its tokens cover" in warning for warning in outcome.warnings)
