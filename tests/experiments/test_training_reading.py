"""Reading of the training experiment for artificial runs: before and after by the common rule of all verdicts."""

from __future__ import annotations

import pytest

from experiments import training
from tests.report.frames import made, run


@pytest.mark.parametrize(
    ("after", "words", "helped"),
    [
        (18.0, "lower: -10 %", True),
        (19.99, "no difference beyond 0.1 %", False),
        (20.01, "no difference beyond 0.1 %", False),
        (22.0, "higher: +10 %", False),
    ],
)
def test_before_and_after_are_told_as_any_two_perplexities_are(after, words, helped):
    figures = dict.fromkeys(("steps_done", "tokens_trained", "train_seconds", "train_tokens_per_sec"), 10.0)
    trained = run(
        "train", loss_before=3.0, perplexity_before=20.0, perplexity=after, best_step=5.0, tokens_scored=100.0,
        train_loss=2.9, corpus="builtin", split="document", max_length=64, **figures,
    )  # fmt: skip
    lines = training.reading(made(trained))
    assert f"20.000 before, {after:.3f} after ({words})" in lines[0]
    assert any(line.startswith("Training did not help") for line in lines) is not helped
