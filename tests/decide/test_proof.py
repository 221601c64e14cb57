"""An answer is measured afresh against the baseline, in rounds of alternating order."""

from __future__ import annotations

from llmtrack.decide.proof import Sample, duel, valid_rounds


def test_a_duel_alternates_its_order_as_often_as_the_time_allows():
    calls: list[str] = []

    def measure(name):
        calls.append(name)
        return Sample(1.0, 1.0)

    samples = duel(("a", "b"), measure, seconds=14)
    assert calls[:8] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert {name: len(values) for name, values in samples.items()} == {"a": 7, "b": 7}
    assert len(duel(("a", "b"), measure, seconds=0)["a"]) == 5
    assert len(duel(("a", "b"), measure, seconds=1e9)["a"]) == 12
    assert len(duel(("a", "b"), measure, seconds=0, least=4)["a"]) == 4


def test_a_disturbed_round_of_a_duel_is_repeated_and_does_not_count():
    calls: list[str] = []

    def measure(name):
        calls.append(name)
        # The second round: one of its two samples, 4 times as slow.
        return Sample(0.25, 4.0, disturbed=True) if len(calls) == 3 else Sample(1.0, 1.0)

    samples = duel(("a", "b"), measure, seconds=0)
    assert [len(values) for values in samples.values()] == [5, 5], "no time: as planned"
    assert valid_rounds(samples, least=4) == [0, 2, 3, 4]
    assert valid_rounds(samples, least=5) == [0, 1, 2, 3, 4], "too few are calm: all"
    calls.clear()
    samples = duel(("a", "b"), measure, seconds=15, least=5, most=5)
    assert [len(values) for values in samples.values()] == [6, 6]
    assert valid_rounds(samples, least=5) == [0, 2, 3, 4, 5]
