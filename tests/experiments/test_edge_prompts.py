"""The edge prompts experiment: its scenarios, its reading of artificial runs, and a whole study."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from experiments import edge_prompts
from experiments.edge_prompts import PROMPT_BY_NAME, PROMPTS, Config, build, plots, reading
from llmtrack import load_engine
from llmtrack.errors import UsageError
from llmtrack.measure.prompts import tokenize_prompts
from llmtrack.report.sentences.outliers import outlier_lines, outliers
from llmtrack.spec.options import parameters
from tests.report.artificial_runs import interval, make_runs, run

SETTINGS = Config(
    model="synthetic:tiny",
    device="cpu",
    max_new_tokens=4,
    min_repeats=2,
    min_seconds=0.0,
    max_seconds=0.2,
    executor="inline",
)

LONG_TOKENS = next(parameter for parameter in parameters(Config) if parameter.name == "long_tokens")


def tasks(**settings):
    return {scenario.name: scenario.task for scenario in build(replace(SETTINGS, **settings)).scenarios}


def test_all_prompts_in_their_order_the_plain_one_as_baseline():
    experiment = build(SETTINGS)
    assert [scenario.name for scenario in experiment.scenarios] == [prompt.name for prompt in PROMPTS]
    assert [scenario.name for scenario in experiment.scenarios if scenario.baseline] == ["plain"]
    assert len({scenario.variant for scenario in experiment.scenarios}) == 1
    assert {scenario.task.max_new_tokens for scenario in experiment.scenarios} == {4}
    assert experiment.settings["long_tokens"] == 1024
    assert experiment.settings["prompt.empty"] == "''"
    assert r"\x1b[31mred" in experiment.settings["prompt.control"]
    assert all(len(str(value)) <= 200 for value in experiment.settings.values())


def test_some_prompts_the_first_as_baseline():
    scenarios = build(replace(SETTINGS, prompts=("code", "empty"))).scenarios
    assert [(scenario.name, scenario.baseline) for scenario in scenarios] == [("empty", True), ("code", False)]


def test_no_prompt_can_fail_by_design():
    assert all((task.empty_prompt, task.overlong_prompt) == ("bos", "truncate") for task in tasks().values())
    assert tasks()["empty"].prompts == ("",)
    assert not tasks()["whitespace"].prompts[0].strip()


def test_only_the_long_prompts_are_limited():
    limited = {name: task.max_prompt_tokens for name, task in tasks(long_tokens=64).items()}
    assert {name for name, limit in limited.items() if limit == 64} == {"very_long", "beyond_context"}
    assert tasks(long_tokens=None)["very_long"].max_prompt_tokens is None
    assert (tasks()["very_long"].prompt_share, tasks()["beyond_context"].prompt_share) == (1.0, 1.25)


@pytest.mark.parametrize(("text", "tokens"), [("none", None), ("0", None), ("64", 64)])
def test_a_number_of_tokens(text, tokens):
    assert LONG_TOKENS.parse(text) == tokens


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_a_bad_number_of_tokens(text):
    with pytest.raises(UsageError, match="long_tokens"):
        LONG_TOKENS.parse(text)


def test_an_unknown_prompt_is_a_usage_error():
    done = CliRunner().invoke(edge_prompts.main, ["--prompts", "plain,nonsense"])
    assert done.exit_code == 2
    assert "nonsense" in done.output


@pytest.mark.slow(3)
def test_the_real_tokenizer_reads_one_token_and_special_tokens(smollm2_spec):
    engine = load_engine(smollm2_spec, device="cpu")
    assert len(engine.encode(PROMPT_BY_NAME["one_token"].text)) == 1
    assert len(set(engine.encode(PROMPT_BY_NAME["repeated_token"].text))) == 1
    done = {name: tokenize_prompts(engine, task) for name, task in tasks(long_tokens=256).items()}
    assert done["empty"].facts["prompt_rule"] == "empty: starts from <|im_start|> (the BOS)"
    assert done["special_tokens"].facts["special_tokens_in_prompt"] == 3
    assert len(done["very_long"].ids[0]) == len(done["beyond_context"].ids[0]) == 256
    assert done["beyond_context"].facts["prompt_truncated_tokens"] == 10235 - 256
    for prompt in PROMPTS:
        ids = engine.encode(prompt.text)
        assert engine.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == prompt.text


def timed(name: str, tokens: int, first_ms: float, step_ms: float, noise: float = 0.02, n: int = 6, **values):
    """Return a run of 11 new tokens: the first, and 10 steps."""
    total_s = (first_ms + 10 * step_ms) / 1000
    numbers = {
        "total_latency_s": total_s,
        "avg_latency_per_token_ms": 1000 * total_s / 11,
        "time_to_first_token_ms": first_ms,
        "inter_token_latency_ms": step_ms,
    }
    spread: dict[str, float] = {}
    for key, value in numbers.items():
        spread |= interval(key, value, value * (1 - noise), value * (1 + noise), n)
    return run(name, prompt_tokens=tokens, prompt_tokens_total=tokens, max_new_tokens=11, **spread, **values)


# 20 tokens: 100 ms and 10 steps of 10 ms, so 200 ms, and half of it is prefill.
ORDINARY = [timed(name, 20, 100, 10) for name in ("plain", "code", "control", "emoji_combining", "multi_line")]
ORDINARY[0]["baseline"] = True


def outliers_among(*rows):
    return {outlier.scenario: outlier for outlier in outliers(make_runs(*ORDINARY, *rows))}


def test_similar_prompts_have_no_outliers():
    assert outliers_among() == {}
    assert outlier_lines(make_runs(*ORDINARY)) == [
        "No prompt lies more than 1.5x from the median of all, up or down, beyond noise."
    ]


def test_a_long_prompt_dominated_by_its_prefill():
    (one,) = outliers_among(timed("very_long", 200, 900, 10)).values()
    # 900 of 1000 ms; ms/token 1000 / 200 = 5x, TTFT 9x.
    assert (one.cause, one.prefill_share, one.step_ratio) == ("long_prefill", pytest.approx(0.9), 1.0)
    assert one.ratios == pytest.approx({"ms/token": 5, "TTFT": 9})
    assert outlier_lines(make_runs(*ORDINARY, timed("very_long", 200, 900, 10))) == [
        "Outliers: very_long (5x ms/token, 9x TTFT): the prompt is long: the prefill is 90% of the call (median of "
        "all 50%); a decode step takes 1x the median."
    ]


def test_a_long_prompt_that_decodes_slowly():
    (one,) = outliers_among(timed("very_long", 200, 120, 40)).values()
    assert (one.cause, one.step_ratio) == ("long_cache", 4.0)
    assert list(one.ratios) == ["ms/token"]


def test_a_slow_call_that_the_length_does_not_explain():
    for row in (timed("right_to_left", 25, 100, 40), timed("right_to_left", 25, 400, 10)):
        (one,) = outliers_among(row).values()
        assert one.cause == "unexplained"
    assert "noise or another program" in outlier_lines(make_runs(*ORDINARY, row))[0]


def test_a_short_prompt_is_fast():
    (one,) = outliers_among(timed("empty", 1, 20, 10)).values()
    assert one.cause == "short_prefill"
    assert one.ratios == pytest.approx({"ms/token": 0.6, "TTFT": 0.2})
    (one,) = outliers_among(timed("control", 18, 20, 10)).values()
    assert one.cause == "unexplained"


def test_a_difference_within_noise_is_not_an_outlier():
    assert outliers_among(timed("very_long", 200, 900, 10, noise=0.9)) == {}
    noisy = [{**timed(row["scenario"], 20, 100, 10, noise=0.99)} for row in ORDINARY]
    assert outliers(make_runs(*noisy, timed("empty", 1, 30, 5))) == []


@pytest.mark.parametrize("n", [1, 3])
def test_with_few_repeats_outliers_are_inconclusive_with_the_command_to_settle_them(n):
    row = timed("very_long", 200, 900, 10, noise=0, n=n)
    line, more = outlier_lines(make_runs(*ORDINARY, row))
    words = f"inconclusive: too few repeats among 5 comparisons, 6 against {n}: measure at least 5"
    assert words in line
    command = "llmtrack run precision -P max_new_tokens=11 -P min_repeats=5"
    assert more.endswith(f"to settle it run: {command}")


def test_more_prompts_need_more_repeats_to_be_conclusive():
    rows = [timed(f"p{n}", 20, 100, 10, n=5) for n in range(8)]
    (one,) = outliers(make_runs(*rows, timed("very_long", 200, 900, 10, n=5)))
    assert (one.repeats_needed, "among 8 comparisons" in one.inconclusive) == (6, True)


def test_one_new_token_has_no_steps():
    rows = [{**row, "inter_token_latency_ms": None} for row in (*ORDINARY, timed("very_long", 200, 900, 10))]
    (one,) = outliers(make_runs(*rows))
    assert (one.scenario, one.cause) == ("very_long", "long_prefill")


def test_reading():
    lines = reading(
        make_runs(
            *ORDINARY,
            timed("empty", 1, 20, 10, prompt_rule="empty: starts from <s> (the BOS)", special_tokens_in_prompt=1),
            timed("very_long", 200, 900, 10, special_tokens_in_prompt=0),
            timed("beyond_context", 200, 1100, 10, prompt_rule="truncated from 250 tokens to the last 200: why",
                  prompt_truncated_tokens=50, warnings="prompt truncated"),
            timed("special_tokens", 30, 110, 10, special_tokens_in_prompt=4),
        )
    )  # fmt: skip
    assert lines[0] == (
        "plain: 18.2 ms/token with 20 prompt tokens and 11 new ones. All 9 prompts lie between 10.9 (empty) and "
        "109.1 ms/token (beyond_context), median 18.2."
    )
    assert lines[1].startswith("Outliers: very_long (5x ms/token, 9x TTFT), beyond_context (6x ms/token, 11x TTFT)")
    assert "the prefill is 90% to 92% of the call" in lines[1]
    assert lines[2].startswith("Outliers: empty (0.6x ms/token, 0.2x TTFT): the prompt is short")
    assert lines[3:] == [
        "Prompts that a rule changed: empty: starts from <s> (the BOS); "
        "beyond_context: truncated from 250 tokens to the last 200: why.",
        "special_tokens: 4 of its 30 tokens are special: the tokenizer reads their text as the tokens themselves, so "
        "a user's text can end a turn unless it is escaped.",
        "Warning: beyond_context: prompt truncated",
    ]


def test_reading_where_special_tokens_are_only_the_bos_of_every_prompt():
    rows = [{**row, "special_tokens_in_prompt": 1} for row in ORDINARY]
    lines = reading(make_runs(*rows, timed("special_tokens", 30, 110, 10, special_tokens_in_prompt=1)))
    assert "special_tokens: this tokenizer has none of the special tokens that the text spells." in lines


def test_the_reading_says_if_nothing_was_measured():
    failed = make_runs(run("plain", status="FAILED", failure="load", reason="gone", baseline=True))
    assert reading(failed) == ["Nothing was measured.", "1 of 1 scenario failed: plain."]


def test_plots_show_every_prompt():
    figures = plots(make_runs(*ORDINARY, timed("very_long", 200, 900, 10)), lambda run_id, name: [])
    assert list(figures) == ["latency", "prefill_share"]
    heights = [bar.get_height() for bar in figures["prefill_share"].axes[0].patches]
    assert heights == pytest.approx([50] * 5 + [90])
