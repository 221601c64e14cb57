"""One line, and the description of a run's page, about how a scenario ended."""

from __future__ import annotations

from llmtrack.measure.statistics import Summary
from llmtrack.report.sentences.outcomes import outcome_line, outcome_note
from llmtrack.spec.outcome import Failure, Measurement
from tests.run.scenarios import generating

DONE = Measurement(
    generating("one"),
    "w",
    {},
    {"total_latency_s": 1.5, "tokens_per_sec": 21.333, "time_to_first_token_ms": 1234.56, "perplexity": 18.7444},
    {"total_latency_s": Summary(n=7, median=1.5, ci_low=1.4, ci_high=1.6, mean=1.5)},
    warnings=("noisy: *so*",),
)
TOLD = "1.500 s, 21.33 tokens/s, TTFT 1,234.6 ms, perplexity 18.744 (median of 7)"
FAILED = Failure(generating("one"), "load", "no <model>")


def test_a_line():
    assert outcome_line(DONE) == f"  one: {TOLD}"
    assert outcome_line(FAILED) == "  one: FAILED (load): no <model>"


def test_a_description_has_the_figures_first_and_then_the_warnings():
    assert outcome_note(DONE) == f"**{TOLD}**\n\n- Warning: noisy: \\*so\\*"
    assert outcome_note(FAILED) == "**FAILED (load): no &lt;model&gt;**\n"
