"""Compare tracked runs: differences, noise, and what is not comparable."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import llmtrack
from llmtrack.decide.compare import COLUMNS, compare, require_metric
from llmtrack.engines.scripted import FakeClock
from llmtrack.errors import UsageError
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.uri import sqlite_path
from llmtrack.tracking.write.tracker import Tracker
from llmtrack.worker.perplexity import measure_perplexity
from tests.decide.scripted import REPEATS
from tests.quality import tokenizers
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")


@pytest.fixture
def studies(measured):
    """Study ids: a baseline, the same again, and one that is 20 % slower."""
    return [study.study_id for study in measured((1, 1.0), (2, 1.0), (3, 1.2))]


@pytest.mark.slow(7)
def test_noise_and_a_slowdown(studies, uri):
    base, repeated, slow = (f"study:{study_id}" for study_id in studies)
    same = compare(base, repeated, ["tokens_per_sec"], tracking_uri=uri)
    assert sorted(same["scenario"]) == ["prompt_4", "prompt_8"]
    assert list(same["baseline_scenario"]) == list(same["scenario"])
    assert set(same["verdict"]) == {"same"}
    assert same["words"].str.startswith("no significant difference").all()
    worse = compare(base, slow, ["tokens_per_sec", "total_latency_s"], tracking_uri=uri)
    assert set(worse["verdict"]) == {"worse"}
    assert worse["ratio"].where(worse["metric"] == "total_latency_s").dropna().between(1.18, 1.22).all()
    assert (worse["ratio_low"] < worse["ratio"]).all()
    assert (worse["p_adjusted"] >= worse["p_value"]).all()
    assert set(worse["n_baseline"]) == {REPEATS}
    assert worse["words"].str.match(r"(slower|longer): \d\.\d\dx \(\d\.\d\d to \d\.\d\d\)").all()


@pytest.mark.slow(4)
def test_columns_and_types(studies, uri):
    comparison = llmtrack.compare(f"study:{studies[0]}", f"study:{studies[2]}", tracking_uri=uri)
    assert {name: str(dtype) for name, dtype in comparison.dtypes.items()} == COLUMNS
    assert set(comparison["metric"]) == {
        "tokens_per_sec",
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "peak_memory_mib",
        "model_size_mib",
    }
    by_metric = comparison.groupby("metric").first()
    assert by_metric.loc["tokens_per_sec", ["unit", "better"]].tolist() == ["tokens/s", "higher"]
    assert by_metric.loc["model_size_mib", "verdict"] == "same"


@pytest.mark.slow(5)
def test_one_baseline_run_is_compared_with_all(studies, uri):
    tracked = runs(study=studies[0], tracking_uri=uri)
    base = tracked[tracked["scenario"] == "prompt_4"]["run_id"].iloc[0]
    comparison = compare(base, f"study:{studies[0]}", ["tokens_per_sec", "model_size_mib"], tracking_uri=uri)
    assert list(comparison["scenario"].unique()) == ["prompt_8"]
    speed, size = comparison["words"]
    assert speed == (
        "tokens_per_sec is not comparable: the workloads differ (prompt_tokens: 4 against 8, "
        "prompt_tokens_total: 4 against 8)"
    )
    assert size == "no difference"


@pytest.mark.slow(4)
def test_raw_samples_are_read_back(studies, uri):
    run_id = runs(study=studies[0], tracking_uri=uri)["run_id"].iloc[0]
    comparison = llmtrack.measurements(run_id, tracking_uri=uri)
    assert {name: str(dtype) for name, dtype in comparison.dtypes.items()} == {
        "metric": "string",
        "unit": "string",
        "repeat": "Int64",
        "value": "float64",
    }
    latency = comparison[comparison["metric"] == "total_latency_s"]
    assert list(latency["repeat"]) == list(range(1, REPEATS + 1))
    assert set(latency["unit"]) == {"s"}
    assert latency["value"].median() == pytest.approx(
        runs(study=studies[0], tracking_uri=uri)["total_latency_s"].iloc[0]
    )
    assert llmtrack.measurements(run_id[:8], tracking_uri=uri).equals(comparison)
    for unknown in ("0" * 32, "nope"):
        with pytest.raises(UsageError, match="there is no run"):
            llmtrack.measurements(unknown, tracking_uri=uri)


def scored(convention=None, **values):
    task = PerplexityTask(**(convention or {}))
    facts = {"corpus_digest": "c1", "dtype": "float32", **values.pop("facts", {})}
    metrics = {"perplexity": 20.0, "loss": 2.9957, "bits_per_byte": 1.0, "tokens_scored": 100.0}
    return measurement(
        scenario=Scenario("ppl", Variant(model="m"), task),
        facts={name: value for name, value in facts.items() if value is not None},
        metrics=metrics | values.pop("metrics", {}),
        summaries={},
        samples={},
        **values,
    )


SCORED = {"scored_text_digest": "t1", "scored_tokens_digest": "k1"}


def of_text(model="m", tokens=499.0, size=499.0, **digests):
    return scored(
        metrics={"tokens_scored": tokens, "bytes_scored": size, "words_scored": 90.0},
        facts={**SCORED, **digests, "model_id": model},
    )


NO_DIGEST = dict.fromkeys(SCORED)


OUTCOMES = {
    "scored": scored(),
    "rolling": scored({"protocol": "rolling", "max_length": 256}),
    "of another corpus": scored(facts={"corpus_digest": "c2"}),
    "with another BOS": scored({"bos_rule": "model"}),
    "of more tokens": scored(metrics={"tokens_scored": 120.0}),
    "with more bits": scored(metrics={"tokens_scored": 120.0, "bits_per_byte": 1.1}, facts={"dtype": "int8"}),
    "of a text": of_text(),
    "of a longer text in other tokens": of_text(size=783.0, scored_text_digest="t2", scored_tokens_digest="k2"),
    "of a longer text": of_text(size=783.0, scored_text_digest="t2"),
    "of another text": of_text(scored_text_digest="t2"),
    "in other tokens": of_text(scored_tokens_digest="k2"),
    "of an unknown text": of_text(scored_text_digest=None),
    "in fewer tokens": of_text("n", tokens=300.0, scored_tokens_digest="k2"),
    "of m, no digest": of_text("m", **NO_DIGEST),
    "of m, no digest, again": of_text("m", **NO_DIGEST),
    "of n, no digest": of_text("n", **NO_DIGEST),
    "timed": measurement(),
    "timed elsewhere": measurement(),
    "timed on other prompts": measurement(workload_id="w2"),
}


ELSEWHERE = ("with more bits", "timed elsewhere")


def track_all(tracker):
    """Track each outcome in a study of its own."""
    return {
        name: tracker.log(
            tracker.start_study("e", "q", {}, ENVIRONMENT | ({"threads": "4"} if name in ELSEWHERE else {})),
            outcome,
        )
        for name, outcome in OUTCOMES.items()
    }


@pytest.fixture
def compared(filled_once, uri):
    ids = filled_once("to-compare", track_all)

    def compared(baseline, candidate, *metrics, **options):
        return compare(ids[baseline], ids[candidate], metrics, tracking_uri=uri, **options)

    return compared


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("rolling", "protocol: documents against rolling, max_length: 512 against 256"),
        ("of another corpus", "corpus_digest: c1 against c2"),
        ("with another BOS", "bos_rule: tokenizer against model"),
        ("of more tokens", "tokenizers differ .tokens_scored: 100 against 120.*bits_per_byte"),
    ],
)
def test_perplexities_of_different_conventions_are_not_compared(compared, candidate, message):
    with pytest.raises(UsageError, match=message):
        compared("scored", candidate, "perplexity")


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("candidate", "metric", "message"),
    [
        # Equal counts of tokens, of another stretch of text.
        (
            "of a longer text in other tokens",
            "perplexity",
            "the tokenizers and the scored text differ .*bytes_scored: 499 against 783.*bos_rule=model",
        ),
        ("of a longer text", "bits_per_byte", "the scored text differ"),
        ("of another text", "bits_per_byte", "scored_text_digest: t1 against t2"),
        ("in other tokens", "loss", "the tokenizers differ .*compare bits_per_byte"),
        ("of an unknown text", "perplexity", "scored_text_digest: t1 against not given"),
    ],
)
def test_the_scored_text_and_its_tokens_must_be_equal(compared, candidate, metric, message):
    with pytest.raises(UsageError, match=message):
        compared("of a text", candidate, metric)


@pytest.mark.slow(1)
def test_one_text_cut_into_other_tokens_has_comparable_bits(compared):
    assert list(compared("of a text", "in fewer tokens", "bits_per_byte")["verdict"]) == ["same"]


@pytest.mark.slow(1)
def test_runs_without_a_digest_are_compared_within_a_model_only(compared):
    baseline = "of m, no digest"
    assert list(compared(baseline, "of m, no digest, again", "perplexity")["verdict"]) == ["same"]
    with pytest.raises(UsageError, match=r"do not say which text was scored.*m against n.*score them again"):
        compared(baseline, "of n, no digest", "perplexity")


@pytest.mark.slow(1)
def test_bits_per_byte_are_compared_across_tokenizers_and_machines(compared):
    (comparison,) = compared("scored", "with more bits", "bits_per_byte").to_dict("records")
    assert (comparison["verdict"], comparison["words"]) == ("worse", "higher: +10 %")


@pytest.mark.slow(1)
def test_machines_are_compared_only_if_asked(compared):
    with pytest.raises(UsageError, match=r"different environments \(threads: 2 against 4\).*--across-environments"):
        compared("timed", "timed elsewhere", "total_latency_s")
    comparison = compared("timed", "timed elsewhere", "total_latency_s", across_environments=True)
    assert comparison["words"].iloc[0] == "too few repeats, 3 against 3: measure at least 4 of each"


@pytest.mark.slow(1)
def test_prompts_that_differ_only_in_their_text_are_other_work(compared):
    with pytest.raises(UsageError, match="the texts of the prompts"):
        compared("timed", "timed on other prompts", "total_latency_s")


@pytest.mark.slow(2)
def test_failures_and_missing_metrics_are_explained(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    base = tracker.log(study, measurement("base"))
    tracker.log(study, failure("broken", scenario=scenario("broken")))
    tracker.log(study, measurement("bare", metrics={"total_latency_s": 1.5}, summaries={}))
    tracker.log_same_as(study, scenario("twin"), {"dtype": "float32"}, "base", "same as base")
    comparison = compare(base, f"study:{study.study_id}", ["tokens_per_sec"], tracking_uri=uri)
    words = comparison.set_index("scenario")["words"].to_dict()
    assert words == {
        "broken": "failed: out of memory: needs 9 GiB",
        "bare": "no tokens_per_sec of the candidate",
        "twin": "not measured again: same as base",
    }
    assert comparison.set_index("scenario")["verdict"].to_dict() == {
        "broken": "failed",
        "bare": "missing",
        "twin": "missing",
    }
    assert comparison["ratio"].isna().all()


@pytest.mark.slow(1)
def test_frames_are_compared_with_the_closest_baseline(tracker, uri):
    old, new = (tracker.start_study("e", "q", {}, {**ENVIRONMENT, "threads": n}) for n in ("2", "4"))
    first = tracker.log(old, measurement(started_at=1.0, ended_at=2.0))
    tracker.log(new, measurement(started_at=3.0, ended_at=4.0))
    candidate = tracker.log(old, measurement(started_at=5.0, ended_at=6.0))
    tracked = runs(tracking_uri=uri)
    others = tracked[tracked["run_id"] != candidate]
    comparison = compare(others, candidate, ["total_latency_s"], tracking_uri=uri)
    assert list(comparison["baseline_run_id"]) == [first]


@pytest.mark.slow(1)
def test_mistakes_are_one_line(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    baseline, candidate = (tracker.log(study, measurement(name)) for name in ("a", "b"))
    for run_id, metrics, message in (
        (candidate, ["tokens_per_second"], "no metric 'tokens_per_second': did you mean tokens_per_sec"),
        (candidate, ["dtype"], "no metric 'dtype'"),
        (candidate, ["batch_size"], "no metric 'batch_size'"),
        (candidate, ["status"], "no metric 'status'"),
        (baseline, None, "the same run"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(baseline, run_id, metrics, tracking_uri=uri)


@pytest.mark.slow(1)
def test_scenarios_without_a_counterpart_are_named(tracker, uri):
    baseline = tracker.start_study("e", "q", {}, ENVIRONMENT)
    for name in ("a", "b"):
        tracker.log(baseline, measurement(name))
    candidate = tracker.start_study("e", "q", {}, ENVIRONMENT)
    tracker.log(candidate, measurement("c"))
    with pytest.raises(UsageError, match="no scenario is in both: the baseline has a, b; the candidate c"):
        compare(f"study:{baseline.study_id}", f"study:{candidate.study_id}", tracking_uri=uri)


@pytest.mark.slow(1)
def test_a_failed_baseline_is_refused(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    failed, done = tracker.log(study, failure()), tracker.log(study, measurement("x"))
    with pytest.raises(UsageError, match="the baseline has no finished run"):
        compare(failed, done, tracking_uri=uri)


BYTES = tokenizers.wrap(tokenizers.byte_level(), bos_token="<s>")


# `ab` is one token, so that each token covers twice the text.
PAIRS = tokenizers.wrap(tokenizers.byte_level(("a", "b")), bos_token="<s>")


def track(tracker: Tracker, engine: tokenizers.TokenizingEngine, name: str, task: PerplexityTask) -> str:
    engine._info = replace(engine.info, model_id=name)
    events: list[Event] = []
    measure_perplexity(Scenario("ppl", Variant(model=name), task), task, engine, events.append, FakeClock())
    (done,) = (event for event in events if isinstance(event, Measurement))
    return tracker.log(tracker.start_study("perplexity", "q", {}, ENVIRONMENT), done)


@pytest.mark.slow(1)
def test_equal_token_counts_of_different_text_are_not_compared(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    truncated = PerplexityTask(corpus=str(corpus), max_length=20, bos_rule="model")
    # 19 predicted tokens each, of 19 and of 38 bytes.
    baseline, candidate = track(tracker, BYTES, "bytes", truncated), track(tracker, PAIRS, "pairs", truncated)
    for metric in ("perplexity", "loss", "bits_per_byte", "word_perplexity"):
        with pytest.raises(UsageError, match=r"bytes_scored: 19 against 38.*max_length that cuts nothing"):
            compare(baseline, candidate, [metric], tracking_uri=uri)


@pytest.mark.slow(1)
def test_a_text_scored_whole_has_comparable_bits_but_not_perplexity(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    complete = PerplexityTask(corpus=str(corpus), bos_rule="model")
    baseline, candidate = track(tracker, BYTES, "bytes", complete), track(tracker, PAIRS, "pairs", complete)
    (comparison,) = compare(baseline, candidate, ["bits_per_byte"], tracking_uri=uri).to_dict("records")
    # 1 nat a token: 80 tokens against 40.
    assert (comparison["verdict"], comparison["words"]) == ("better", "lower: -50 %")
    with pytest.raises(UsageError, match=r"the tokenizers differ .tokens_scored: 80 against 40"):
        compare(baseline, candidate, ["perplexity"], tracking_uri=uri)


@pytest.mark.slow(2)
def test_one_tokenizer_under_two_names_is_compared(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("ab" * 40, encoding="utf-8")
    truncated = PerplexityTask(corpus=str(corpus), max_length=20)
    baseline, candidate = track(tracker, BYTES, "bytes", truncated), track(tracker, BYTES, "again", truncated)
    assert list(compare(baseline, candidate, ["perplexity"], tracking_uri=uri)["verdict"]) == ["same"]


def test_a_suggested_metric_is_named_once():
    with pytest.raises(UsageError) as caught:
        require_metric("tokens_per_se", ["tokens_per_sec", "custom_tokens_per_sec"])
    assert str(caught.value).count(" tokens_per_sec") == 1


@pytest.mark.slow(2)
def test_rows_from_a_file_compare_as_before(studies, uri):
    before = compare(studies[0], studies[1], tracking_uri=uri)
    tables = [runs(study=study, tracking_uri=uri) for study in studies[:2]]
    through = {
        "csv": lambda table: pd.read_csv(io.StringIO(table.to_csv(index=False))),
        "json": lambda table: pd.read_json(io.StringIO(table.to_json(orient="records"))),
        "index": lambda table: table.set_index("run_id"),
    }
    for name, convert in through.items():
        after = compare(*map(convert, tables), tracking_uri=uri)
        assert after[["scenario", "metric", "verdict"]].equals(before[["scenario", "metric", "verdict"]]), name
    with pytest.raises(UsageError, match="rows without the column run_id: give rows of"):
        compare(tables[0].drop(columns="run_id"), tables[1], tracking_uri=uri)
    with pytest.raises(UsageError, match="the column start_time has a value that is not a time"):
        compare(tables[0].assign(start_time="soon"), tables[1], tracking_uri=uri)
    with pytest.raises(UsageError, match="the candidate has no runs"):
        compare(tables[0], tables[1][:0], tracking_uri=uri)


@pytest.mark.slow(1)
def test_unreadable_samples_of_a_repeated_run_are_not_none(studies, uri, tmp_path):
    run_id = runs(study=studies[0], tracking_uri=uri)["run_id"].iloc[0]
    with closing(sqlite3.connect(sqlite_path(uri))) as database:
        database.execute("UPDATE runs SET artifact_uri = ?", (str(tmp_path / "gone"),))
        database.commit()
    with pytest.raises(UsageError, match=r"samples.json of run \w+ cannot be read, which repeated its calls"):
        llmtrack.measurements(run_id, tracking_uri=uri)
    # The study's own run has none, whatever its scenarios have.
    own = runs(study=studies[0], kind="study", tracking_uri=uri)["run_id"].iloc[0]
    assert llmtrack.measurements(own, tracking_uri=uri).empty
