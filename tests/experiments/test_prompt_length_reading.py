"""Reading of the prompt length experiment without anything to compare."""

from __future__ import annotations

import pytest

from experiments import prompt_length
from llmtrack.report.page.content import conditions
from tests.report.frames import made, run


@pytest.mark.parametrize("lengths", [(), (16,), (16, 16), (16, 16, 16)])
def test_one_length_is_nothing_to_compare(lengths):
    runs = made(
        *(
            run(f"p{n}", prompt_tokens_total=tokens, total_latency_s=1.0, time_to_first_token_ms=10.0)
            for n, tokens in enumerate(lengths)
        ),
        run("failed", status="FAILED", failure="load", reason="gone"),
    )
    assert prompt_length.reading(runs)[0].startswith("Fewer than two lengths were measured")


def test_the_revision_of_a_hub_model_is_a_condition():
    told = dict(conditions(made(run("a", revision="abc123"), run("b", revision="abc123"))))
    assert told["revision"] == "abc123"
