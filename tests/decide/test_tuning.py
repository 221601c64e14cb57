"""The way to the best candidate, told by hands that answer from a table on a clock of their own."""

from __future__ import annotations

import pytest

from llmtrack.decide.tuning import Goal, PartScore, Seen, Tuning


class Table:
    """Answers from known speeds: a first sample takes `first` seconds, a further one 1 / speed."""

    def __init__(self, speeds: dict[str, float], first: float) -> None:
        self.speeds, self.first = speeds, first
        self.asked: list[str] = []
        self.spent = 0.0

    def measure(self, name: str, seconds: float) -> Seen:
        again = 1 / self.speeds[name]
        took = again if name in self.asked else self.first + again
        self.asked.append(name)
        self.spent += took
        return Seen({"tokens_per_sec": self.speeds[name]}, took, again=again)

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        return PartScore(10.0, 10, 0.0)

    measure_afresh = measure

    def dropped(self, name: str) -> None:
        pass


def tuned(speeds: dict[str, float], first: float, seconds: float) -> tuple[Tuning, Table]:
    hands = Table(speeds, first)
    tuning = Tuning(Goal(tuple(speeds), "tokens_per_sec", "higher", seconds, {}), hands)
    tuning.run()
    return tuning, hands


def test_a_budget_too_short_for_the_claim_still_goes_to_what_was_not_measured_yet():
    # A claim alone takes 2 x (30 + 5 x 20) s: more than there is.
    tuning, hands = tuned({"base": 0.05, "b": 0.06, "c": 0.07}, first=30.0, seconds=260.0)
    assert set(hands.asked) == {"base", "b", "c"}
    assert hands.spent <= 1.1 * 260
    assert tuning.claim is not None
    assert not tuning.claim.told
    assert (tuning.winner, tuning.equal[0]) == ("base", "base")


def test_the_winner_is_claimed_from_what_was_measured_afresh():
    tuning, _ = tuned({"base": 1.0, "fast": 2.0}, first=1.0, seconds=100.0)
    assert tuning.winner == "fast"
    assert tuning.claim is not None
    assert tuning.claim.verdict == "better"
    assert tuning.fresh["fast"] == pytest.approx([2.0] * len(tuning.fresh["fast"]))
