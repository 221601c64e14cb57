"""Speed and quality are joined by variant; what is not comparable is left out with a note."""

from __future__ import annotations

import math

import pytest

from llmtrack.decide.candidates import gather_candidates
from llmtrack.errors import UsageError
from llmtrack.report.pareto import pareto_table
from tests.report.artificial_runs import column, interval, make_runs, repeated, replace_values, run, scored, timed

pytestmark = pytest.mark.usefixtures("_clean_environment")


def test_runs_without_a_model_keep_their_quality():
    runs = make_runs(
        timed("fp32", 10.0, model_id=None, perplexity=20.0),
        timed("int8", 30.0, model_id=None, quantization="int8", perplexity=25.0),
    )
    assert list(column(gather_candidates(runs).runs, "perplexity")) == [20.0, 25.0]


def test_quality_is_the_runs_own_or_joined_by_variant():
    runs = make_runs(
        timed("fp32", 10.0, experiment="speed"),
        timed("bf16", 20.0, experiment="speed", dtype="bfloat16"),
        timed(
            "int8",
            30.0,
            quantization="int8",
            perplexity=25.0,
            corpus_digest="c",
            protocol="documents",
            max_length=512,
            bos_rule="tokenizer",
        ),
        timed("alone", 5.0, dtype="float16"),
        scored("ppl", 20.0, experiment="perplexity"),
        scored("ppl16", 20.5, experiment="perplexity", dtype="bfloat16"),
    )
    candidates = gather_candidates(runs)
    assert {run.scenario: run.get("perplexity") for run in candidates.runs} == {
        "fp32": 20.0,
        "bf16": 20.5,
        "int8": 25.0,
        "alone": None,
    }
    assert candidates.notes == ()
    table = pareto_table(candidates, ("tokens_per_sec", "perplexity"))
    last = {row[0]: row[-1] for row in table.rows}
    assert last == {
        "int8": "inconclusive against fp32, bf16 (tokens_per_sec: 0.33x, one value each: noise unknown)",
        "bf16": "inconclusive against fp32 (tokens_per_sec: 0.50x, one value each: noise unknown)",
        "fp32": "on the front",
        "alone": "no perplexity",
    }


def test_an_ambiguous_quality_is_not_joined():
    runs = make_runs(timed("a", 10.0), scored("ppl", 20.0), scored("ppl_32", 25.0), scored("again", 20.001))
    candidates = gather_candidates(runs)
    assert not candidates.runs[0].has("perplexity")
    assert candidates.notes == ("a has no perplexity of its own, and the runs of its variant disagree",)


def test_incomparable_runs_are_left_out_with_a_note():
    runs = make_runs(
        timed("a", 10.0),
        timed("b", 20.0, quantization="int8"),
        timed("long", 5.0) | {"workload_id": "other"},
        timed("elsewhere", 90.0) | {"environment_id": "f"},
        scored("ppl", 20.0),
        scored("ppl8", 21.0, quantization="int8"),
        scored("rolling", 9.0, protocol="rolling"),
    )
    candidates = gather_candidates(runs)
    assert list(column(candidates.runs, "scenario")) == ["a", "b"]
    assert list(column(candidates.runs, "perplexity")) == [20.0, 21.0]
    assert [note.split(" is left")[0] for note in candidates.notes] == [
        "1 run of another workload",
        "1 run measured in another environment",
        "1 run whose perplexity is of another convention",
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"scored_tokens_digest": "k2", "tokens_scored": 2500.0},
        {"scored_text_digest": "t2", "bytes_scored": 900.0},
        {"scored_tokens_digest": None, "scored_text_digest": None},
    ],
)
def test_a_perplexity_of_other_tokens_or_another_text_is_left_out_with_a_note(changed):
    same = {"scored_tokens_digest": "k", "scored_text_digest": "t", "tokens_scored": 1000.0}
    same["bytes_scored"] = 4000.0
    runs = make_runs(
        timed("a", 10.0),
        timed("b", 20.0, quantization="int8"),
        timed("c", 30.0, quantization="int4"),
        scored("ppl", 20.0, **same),
        scored("ppl8", 21.0, quantization="int8", **same),
        scored("ppl4", 12.0, quantization="int4", **{**same, **changed}),
    )
    candidates = gather_candidates(runs)
    assert column(candidates.runs, "perplexity") == [20.0, 21.0, None]
    assert candidates.notes[0].startswith("1 run whose perplexity is of other tokens or another text is left out")


def test_without_a_timed_run_there_is_nothing_to_choose():
    with pytest.raises(UsageError, match="no finished run of precision has tokens_per_sec"):
        gather_candidates(make_runs(scored("ppl", 20.0)))
    with pytest.raises(UsageError, match="no finished scenario matches: widen the filters"):
        gather_candidates(make_runs())


@pytest.mark.parametrize(
    ("name", "values", "quality"),
    [
        ("env.config_digest", ["theta 1e4", "theta 1e6"], None),
        ("env.tokenizer_digest", ["t", "u"], None),
        ("env.config_digest", ["theta 1e4", "theta 1e4"], 20.0),
    ],
)
def test_quality_is_not_joined_across_configs_or_tokenizers(name, values, quality):
    runs = make_runs(scored("quality", 20.0, experiment="perplexity"), timed("speed", 10.0))
    (joined,) = gather_candidates(replace_values(runs, **{name: values})).runs
    assert joined.get("perplexity") == quality


def test_infinite_values_do_not_count():
    candidates = gather_candidates(
        make_runs(timed("a", math.inf, perplexity=1.0), timed("b", 10.0, perplexity=math.inf), timed("c", 5.0, perplexity=9.0))
    )  # fmt: skip
    assert candidates.runs.scenarios == ["b", "c"]
    assert column(candidates.runs, "perplexity") == [None, 9.0]


def test_an_unfinished_newer_run_does_not_replace_a_finished_one():
    done = run("a", tokens_per_sec=1.0, model="m")
    newer = {**done, "run_id": "newer", "start_time": "2026-11-29T10:00:00Z", "tokens_per_sec": None}
    candidates = gather_candidates(make_runs(done, {**newer, "status": "RUNNING", "outcome": None}))
    assert list(column(candidates.runs, "run_id")) == ["id-a"]


def test_of_one_configuration_in_several_studies_the_newest_counts():
    late = {"start_time": "2026-11-29T10:00:00Z", "end_time": "2026-11-29T10:00:00Z"}
    lucky = repeated("bfloat16", 20.9, perplexity=20.0) | {"quantization": "none", "dtype": "bfloat16"}
    same = {
        **lucky,
        "scenario": "torch-bfloat16",
        "run_id": "later",
        "study_id": "s2",
        "experiment": "e2",
        **late,
    }
    newest = {**same, "tokens_per_sec": 2.5, **interval("tokens_per_sec", 2.5, 2.4, 2.6, 8)}
    candidates = gather_candidates(make_runs(lucky, newest))
    assert list(column(candidates.runs, "run_id")) == ["later"]
    assert candidates.notes == (
        "torch-bfloat16 was measured 2 times in one configuration: the newest counts (tokens_per_sec 2.5; before: 20.9)",
    )
