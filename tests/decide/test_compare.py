"""Comparing runs that were measured and tracked: what is different, what is noise, what cannot be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import llmtrack
from llmtrack.decide.compare import COLUMNS, compare
from llmtrack.engines.scripted import FakeClock
from llmtrack.errors import UsageError
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.write.tracker import Tracker
from llmtrack.worker.perplexity import measure_perplexity
from tests.decide.scripted import REPEATS
from tests.quality import tokenizers as made
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")


@pytest.fixture
def studies(measured):
    """Study ids: a baseline, the same again, and one that is 20 % slower."""
    return [each.study_id for each in measured((1, 1.0), (2, 1.0), (3, 1.2))]


@pytest.mark.slow(7)
def test_noise_and_a_slowdown(studies, uri):
    base, again, slow = (f"study:{each}" for each in studies)
    same = compare(base, again, ["tokens_per_sec"], tracking_uri=uri)
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
    found = llmtrack.compare(f"study:{studies[0]}", f"study:{studies[2]}", tracking_uri=uri)
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == COLUMNS
    assert set(found["metric"]) == {
        "tokens_per_sec",
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "peak_memory_mib",
        "model_size_mib",
    }
    by_metric = found.groupby("metric").first()
    assert by_metric.loc["tokens_per_sec", ["unit", "better"]].tolist() == ["tokens/s", "higher"]
    assert by_metric.loc["model_size_mib", "verdict"] == "same"


@pytest.mark.slow(5)
def test_one_baseline_run_stands_against_all(studies, uri):
    tracked = runs(study=studies[0], tracking_uri=uri)
    base = tracked[tracked["scenario"] == "prompt_4"]["run_id"].iloc[0]
    found = compare(base, f"study:{studies[0]}", ["tokens_per_sec", "model_size_mib"], tracking_uri=uri)
    assert list(found["scenario"].unique()) == ["prompt_8"]
    speed, size = found["words"]
    assert speed == (
        "tokens_per_sec is not comparable: the workloads differ (prompt_tokens: 4 against 8, "
        "prompt_tokens_total: 4 against 8)"
    )
    assert size == "no difference"


@pytest.mark.slow(4)
def test_raw_samples_are_read_back(studies, uri):
    run_id = runs(study=studies[0], tracking_uri=uri)["run_id"].iloc[0]
    found = llmtrack.measurements(run_id, tracking_uri=uri)
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == {
        "metric": "string",
        "unit": "string",
        "repeat": "Int64",
        "value": "float64",
    }
    latency = found[found["metric"] == "total_latency_s"]
    assert list(latency["repeat"]) == list(range(1, REPEATS + 1))
    assert set(latency["unit"]) == {"s"}
    assert latency["value"].median() == pytest.approx(
        runs(study=studies[0], tracking_uri=uri)["total_latency_s"].iloc[0]
    )
    assert llmtrack.measurements(run_id[:8], tracking_uri=uri).equals(found)
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
    return lambda one, other, *metrics, **how: compare(ids[one], ids[other], metrics, tracking_uri=uri, **how)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("rolling", "protocol: documents against rolling, max_length: 512 against 256"),
        ("of another corpus", "corpus_digest: c1 against c2"),
        ("with another BOS", "bos_rule: tokenizer against model"),
        ("of more tokens", "tokenizers differ .tokens_scored: 100 against 120.*bits_per_byte"),
    ],
)
def test_perplexities_of_different_conventions_are_not_compared(compared, other, message):
    with pytest.raises(UsageError, match=message):
        compared("scored", other, "perplexity")


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("other", "metric", "message"),
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
def test_the_scored_text_and_its_tokens_must_be_equal(compared, other, metric, message):
    with pytest.raises(UsageError, match=message):
        compared("of a text", other, metric)


@pytest.mark.slow(1)
def test_one_text_cut_into_other_tokens_has_comparable_bits(compared):
    assert list(compared("of a text", "in fewer tokens", "bits_per_byte")["verdict"]) == ["same"]


@pytest.mark.slow(1)
def test_runs_that_tell_no_digest_are_compared_within_a_model_only(compared):
    one = "of m, no digest"
    assert list(compared(one, "of m, no digest, again", "perplexity")["verdict"]) == ["same"]
    with pytest.raises(UsageError, match=r"do not say which text was scored.*m against n.*score them again"):
        compared(one, "of n, no digest", "perplexity")


@pytest.mark.slow(1)
def test_bits_per_byte_are_compared_across_tokenizers_and_machines(compared):
    (found,) = compared("scored", "with more bits", "bits_per_byte").to_dict("records")
    assert (found["verdict"], found["words"]) == ("worse", "higher: +10 %")


@pytest.mark.slow(1)
def test_machines_are_compared_only_if_asked(compared):
    with pytest.raises(UsageError, match=r"different environments \(threads: 2 against 4\).*--across-environments"):
        compared("timed", "timed elsewhere", "total_latency_s")
    found = compared("timed", "timed elsewhere", "total_latency_s", across_environments=True)
    assert found["words"].iloc[0] == "too few repeats, 3 against 3: measure at least 4 of each"


@pytest.mark.slow(1)
def test_prompts_that_differ_in_their_words_only(compared):
    with pytest.raises(UsageError, match="the texts of the prompts"):
        compared("timed", "timed on other prompts", "total_latency_s")


@pytest.mark.slow(2)
def test_a_failure_tells_its_reason_and_a_missing_metric_is_named(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    base = tracker.log(study, measurement("base"))
    tracker.log(study, failure("broken", scenario=scenario("broken")))
    tracker.log(study, measurement("bare", metrics={"total_latency_s": 1.5}, summaries={}))
    tracker.log_same_as(study, scenario("twin"), {"dtype": "float32"}, "base", "same as base")
    found = compare(base, f"study:{study.study_id}", ["tokens_per_sec"], tracking_uri=uri)
    words = found.set_index("scenario")["words"].to_dict()
    assert words == {
        "broken": "failed: out of memory: needs 9 GiB",
        "bare": "no tokens_per_sec of the candidate",
        "twin": "not measured again: same as base",
    }
    assert found.set_index("scenario")["verdict"].to_dict() == {
        "broken": "failed",
        "bare": "missing",
        "twin": "missing",
    }
    assert found["ratio"].isna().all()


@pytest.mark.slow(1)
def test_frames_can_be_compared_and_the_closest_baseline_is_taken(tracker, uri):
    old, new = (tracker.start_study("e", "q", {}, {**ENVIRONMENT, "threads": n}) for n in ("2", "4"))
    first = tracker.log(old, measurement(started_at=1.0, ended_at=2.0))
    tracker.log(new, measurement(started_at=3.0, ended_at=4.0))
    candidate = tracker.log(old, measurement(started_at=5.0, ended_at=6.0))
    tracked = runs(tracking_uri=uri)
    others = tracked[tracked["run_id"] != candidate]
    found = compare(others, candidate, ["total_latency_s"], tracking_uri=uri)
    assert list(found["baseline_run_id"]) == [first]


@pytest.mark.slow(1)
def test_mistakes_are_one_line(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    one, other = (tracker.log(study, measurement(name)) for name in ("a", "b"))
    for candidate, metrics, message in (
        (other, ["tokens_per_second"], "no metric 'tokens_per_second': did you mean tokens_per_sec"),
        (other, ["dtype"], "no metric 'dtype'"),
        (other, ["batch_size"], "no metric 'batch_size'"),
        (other, ["status"], "no metric 'status'"),
        (one, None, "the same run"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(one, candidate, metrics, tracking_uri=uri)


@pytest.mark.slow(1)
def test_scenarios_without_a_counterpart_are_named(tracker, uri):
    one = tracker.start_study("e", "q", {}, ENVIRONMENT)
    for name in ("a", "b"):
        tracker.log(one, measurement(name))
    other = tracker.start_study("e", "q", {}, ENVIRONMENT)
    tracker.log(other, measurement("c"))
    with pytest.raises(UsageError, match="no scenario is in both: the baseline has a, b; the candidate c"):
        compare(f"study:{one.study_id}", f"study:{other.study_id}", tracking_uri=uri)


@pytest.mark.slow(1)
def test_a_baseline_that_failed_is_said(tracker, uri):
    study = tracker.start_study("e", "q", {}, ENVIRONMENT)
    failed, done = tracker.log(study, failure()), tracker.log(study, measurement("x"))
    with pytest.raises(UsageError, match="the baseline has no finished run"):
        compare(failed, done, tracking_uri=uri)


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
