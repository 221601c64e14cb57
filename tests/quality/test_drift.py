"""Divergence and agreement by hand, on engines with known distributions."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.quality.attach import with_drift
from llmtrack.quality.drift import compare_distributions, compare_row, rows_to_compare
from llmtrack.quality.metrics import Drift, drift_of, stderr_of_ratio
from llmtrack.quality.shards import merge_drift
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.scores import Compared, Item, RowSums
from llmtrack.spec.serialization import from_json, to_json
from tests.tracking.samples import measurement, perplexity


class Fixed(ScriptedEngine):
    """Predicts `a` and `b` with fixed probabilities after any token."""

    def __init__(self, a: float, b: float, vocab_size: int = 128) -> None:
        super().__init__(FakeClock(), Script(0.1, 0.1))
        self._logits = torch.full((vocab_size,), -math.inf)
        self._logits[ord("a")], self._logits[ord("b")] = math.log(a), math.log(b)
        self._info = type(self._info)(**{**vars(self._info), "vocab_size": vocab_size})
        self.lengths: list[int] = []

    def next_token_logits(self, ids):
        self.lengths.append(len(ids))
        # A tiny share for all others keeps logarithms finite.
        return torch.logaddexp(self._logits, torch.tensor(-60.0)).repeat(len(ids), 1)


def test_divergence_by_hand():
    drift = compare_distributions(Fixed(0.5, 0.5), Fixed(0.75, 0.25), ["aab"])
    # KL of (3/4, 1/4) from (1/2, 1/2); both predicted tokens are `a` and then `b`.
    assert drift.kl_divergence == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    # Log-likelihoods: 2 ln 2 against ln(4/3) + ln 4, over two tokens.
    assert drift.perplexity_ratio == pytest.approx(math.exp((2 * math.log(2) - math.log(16 / 3)) / 2))
    assert drift.tokens == 2


def test_different_tokenizations_are_not_comparable():
    class Shouting(Fixed):
        def encode(self, text, special_tokens=True):
            return super().encode(text.upper(), special_tokens)

    with pytest.raises(ScenarioError, match="tokenizes the text differently"):
        compare_distributions(Fixed(0.5, 0.5), Shouting(0.5, 0.5), ["aab"])


def test_agreement_is_the_share_of_equal_first_choices():
    assert compare_distributions(Fixed(0.6, 0.4), Fixed(0.9, 0.1), ["aaa"]).top1_agreement == 1.0
    assert compare_distributions(Fixed(0.4, 0.6), Fixed(0.9, 0.1), ["aaa"]).top1_agreement == 0.0


def test_an_engine_is_equal_to_itself():
    engine = Fixed(0.3, 0.7)
    drift = compare_distributions(engine, engine, ["ab", "ba"])
    assert (drift.kl_divergence, drift.top1_agreement, drift.perplexity_ratio) == (0.0, 1.0, 1.0)
    assert drift.finding is None
    assert (drift.ratio_interval, drift.kl_interval) == ((1.0, 1.0), (0.0, 0.0))


def test_the_interval_is_a_paired_bootstrap_over_texts():
    engine, reference = Fixed(0.5, 0.5), Fixed(0.75, 0.25)
    texts = ["aaa", "abb", "aab", "bab"]
    drift = compare_distributions(engine, reference, texts)
    # Differences of losses: -ln(2/3) for each predicted `a`, and -ln 2 for each `b`.
    a, b = math.log(1.5), -math.log(2)
    stderr = stderr_of_ratio([2 * a, 2 * b, a + b, a + b], [2, 2, 2, 2])
    assert drift.loss_stderr == pytest.approx(stderr)
    middle = math.exp((a + b) / 2)
    assert drift.ratio_interval == pytest.approx((middle * math.exp(-1.96 * stderr), middle * math.exp(1.96 * stderr)))
    # The divergence of these distributions is the same for any text.
    assert drift.kl_stderr == pytest.approx(0.0, abs=1e-9)
    assert compare_distributions(engine, reference, texts[:1]).loss_stderr is None


def test_max_tokens_limits_the_comparison():
    engine = Fixed(0.5, 0.5)
    drift = compare_distributions(engine, Fixed(0.5, 0.5), ["abab", "a", "abababab", "ab"], max_tokens=5)
    assert drift.tokens == 5
    assert engine.lengths == [3, 2]


def test_vocabularies_of_different_sizes_are_not_comparable():
    with pytest.raises(ScenarioError, match=r"vocabularies differ in size \(reference: 128 tokens, this model: 200\)"):
        compare_distributions(Fixed(0.5, 0.5, 200), Fixed(0.5, 0.5), ["ab"])


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ScenarioError, match="nothing to compare"):
        compare_distributions(Fixed(0.5, 0.5), Fixed(0.5, 0.5), ["a"])


@pytest.mark.parametrize(
    ("ratio", "start"), [(1.05, None), (1.2, "quality spike: on 10 tokens"), (4.0, "garbage: on 10 tokens")]
)
def test_a_large_ratio_has_a_finding(ratio, start):
    finding = Drift(0.1, 0.8, ratio, 10).finding
    assert finding is None if start is None else finding.startswith(start)


def test_merged_rows_by_hand():
    # KL 1 + 0.5 nats, 1 + 2 agreements, 3 + 1 against 2 + 1 nats over 2 + 2 tokens.
    rows = {0: RowSums(1.0, 1.0, 3.0, 2.0, 2), 1: RowSums(0.5, 2.0, 1.0, 1.0, 2)}
    drift = merge_drift([Compared(2, "t", {1: rows[1]}, 0.0), Compared(2, "t", {0: rows[0]}, 0.0)])
    assert (drift.kl_divergence, drift.top1_agreement, drift.tokens) == (1.5 / 4, 3 / 4, 4)
    assert drift.perplexity_ratio == math.exp(1 / 4)
    assert drift.kl_stderr == stderr_of_ratio([1.0, 0.5], [2, 2])


@cache
def compared_alone():
    """Return the drift by a single worker, and the sums of each row."""
    engine, reference, texts = Fixed(0.5, 0.5), Fixed(0.75, 0.25), ["aab", "abab", "ba", "aaaaab", "b", "bbb"]
    rows = rows_to_compare(engine, reference, texts, 512, "tokenizer", 11)
    sums = [compare_row(engine, reference, row) for row in rows]
    return compare_distributions(engine, reference, texts, max_tokens=11), sums


@pytest.mark.slow(1)
@settings(max_examples=25)
@given(data=st.data())
def test_any_sharding_in_any_order_equals_a_single_worker(data):
    expected, sums = compared_alone()
    shards: dict[int, dict[int, RowSums]] = {}
    for number in data.draw(st.permutations(range(len(sums)))):
        shards.setdefault(data.draw(st.integers(0, 2)), {})[number] = sums[number]
    parts = [Compared(len(sums), "t", rows, 0.0) for rows in shards.values()]
    assert merge_drift([from_json(to_json(part), Compared) for part in parts]) == expected


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{0: 2}], r"of 2 rows, workers compared \[0\]"),
        ([{0: 2, 1: 2}, {1: 2}], "of 2 rows"),
        ([{0: 2}, {1: 3}], "workers tokenized"),
    ],
)
def test_missing_or_repeated_rows_are_refused(parts, message):
    """Each part maps row numbers to the number of rows that its worker reports."""
    sums = RowSums(1.0, 1.0, 1.0, 1.0, 1)
    compared = [Compared(max(part.values()), "t", dict.fromkeys(part, sums), 0.0) for part in parts]
    with pytest.raises(ScenarioError, match=message):
        merge_drift(compared)


def test_each_compared_document_has_its_own_drift():
    """By hand: 3 nats instead of 2 over 2 tokens, one of which agrees; then 1 instead of 4 over 4 that all agree."""
    rows = [RowSums(1.0, 1, 3.0, 2.0, 2), RowSums(0.5, 4, 1.0, 4.0, 4)]
    items = tuple(Item(f"{number}: text", {"loss": 1.5}) for number in (1, 2, 3))
    timed = measurement(scenario=perplexity(), items=items)
    compared = with_drift(timed, QualityCheck(reference=Variant("m")), drift_of(rows), {})
    assert [item.values for item in compared.items] == [
        {"loss": 1.5, "loss_change": 0.5, "top1_agreement": 0.5},
        {"loss": 1.5, "loss_change": -0.75, "top1_agreement": 1.0},
        {"loss": 1.5},
    ]
    assert [item.name for item in compared.items] == [item.name for item in items]
