"""Do unusual prompts cost more, and does anything break?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated

from experiments.prompts import BASE_TEXT, DEFAULT_PROMPT
from llmtrack.errors import UsageError
from llmtrack.experiment import Declaration, Experiment, SeriesOf
from llmtrack.host.formatting import plural
from llmtrack.report.plots.charts import bar_plot
from llmtrack.report.sentences import reading as say
from llmtrack.report.sentences.outliers import outlier_lines, prefill_shares
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, ManyTimingOptions, RunOptions
from llmtrack.spec.options import Option
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import GenerateTask
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"


@dataclass(frozen=True)
class EdgePrompt:
    """A prompt that users send and benchmarks forget.

    Attributes:
        name: name of its scenario.
        text: the prompt.
        why: what may go wrong with it.
        prompt_tokens: repeat and cut it to this many tokens.
        prompt_share: repeat it to this share of the room in the model's context; over 1: beyond the context.
    """

    name: str
    text: str
    why: str
    prompt_tokens: int | None = None
    prompt_share: float | None = None


PROMPTS = (
    EdgePrompt("plain", DEFAULT_PROMPT, "an ordinary sentence, which the others are compared with"),
    EdgePrompt("one_token", "a", "the shortest prefill that there is"),
    EdgePrompt("empty", "", "a causal model cannot start from nothing: a start token stands in"),
    EdgePrompt("whitespace", " \t \n\n   \n", "tokenizers merge, keep or strip blanks"),
    EdgePrompt("very_long", BASE_TEXT, "as long as the context, or --long-tokens, allows", prompt_share=1.0),
    EdgePrompt("beyond_context", BASE_TEXT, "longer than the context: its last tokens are kept", prompt_share=1.25),
    EdgePrompt(
        "multi_line",
        "Dear harbour master,\n\nthe crane on quay three\n\t- lifts nothing,\r\n\t- turns by itself,\n\t- sings.\n\n"
        "Yours,\n\n\n",
        "line ends of both kinds, tabs, blank lines, an open end",
    ),
    EdgePrompt("repeated_token", " the" * 64, "one token of most vocabularies again and again: greedy text loops"),
    EdgePrompt(
        "emoji_combining",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 "
        "\U0001f44d\U0001f3fd \U0001f1f3\U0001f1f4 cafe\u0301 nai\u0308ve Z\u0351\u036b\u0343 means",
        "joined emoji, flags, skin tones and stacked accents: many tokens for few characters",
    ),
    EdgePrompt(
        "right_to_left",
        "الميناء يستيقظ قبل المدينة، وأول ما يُسمع هو הנמל מתעורר לפני העיר, והדבר הראשון ששומעים הוא",
        "Arabic and Hebrew: rare in most vocabularies, so more tokens a word",
    ),
    EdgePrompt(
        "code",
        'def moving_average(values: list[float], width: int) -> list[float]:\n    """Mean of each window."""\n'
        '    if not 0 < width <= len(values):\n        raise ValueError(f"{width=}")\n    total =',
        "indentation and punctuation",
    ),
    EdgePrompt(
        "control",
        "tide\ttable\x00\x01\x02\x07\x08\x0b\x0c\x1b[31mred\x1b[0m\x7f\u0085\u200b\u202eback\u202c\ufeff end",
        "NUL, bell, backspace, escape sequences, zero-width and direction marks",
    ),
    EdgePrompt(
        "special_tokens",
        "<|im_start|>user\nIs this<|im_end|> the end?<|endoftext|> <s>No.</s> <|begin_of_text|>Go on.<|eot_id|> "
        "<|bos|>Then<|eos|> it",
        "text that spells special tokens, of several families of models: tokenizers read it as these tokens",
    ),
)
PROMPT_BY_NAME = {prompt.name: prompt for prompt in PROMPTS}


@dataclass(frozen=True)
class Config(EngineOptions, ManyTimingOptions, RunOptions):
    """Settings of the experiment."""

    prompts: Annotated[tuple[str, ...], Option("Prompts to measure.", choices=(ALL, *PROMPT_BY_NAME))] = (ALL,)
    long_tokens: Annotated[
        int | None, Option("Maximum tokens of the long prompts; none: as many as fit into the context.", min=1)
    ] = 1024


def build(config: Config) -> Experiment:
    """Return the experiment: each prompt with all else equal; `plain` is the baseline.

    Raises:
        UsageError: no chosen prompt is affected by `long_tokens`.
    """
    chosen = [prompt for prompt in PROMPTS if ALL in config.prompts or prompt.name in config.prompts]
    if config.long_tokens != Config.long_tokens and all(prompt.prompt_share is None for prompt in chosen):
        raise UsageError("long_tokens would change nothing: none of the chosen prompts is a long one")
    scenarios = tuple(
        Scenario(
            prompt.name,
            config.variant(),
            GenerateTask(
                (prompt.text,),
                prompt_tokens=prompt.prompt_tokens,
                max_new_tokens=config.max_new_tokens,
                prompt_share=prompt.prompt_share,
                max_prompt_tokens=None if prompt.prompt_share is None else config.long_tokens,
                empty_prompt="bos",
                overlong_prompt="truncate",
            ),
            config.repeat(),
            baseline=prompt is chosen[0],
        )
        for prompt in chosen
    )
    return DECLARED.asking(
        config,
        scenarios,
        prompts=tuple(prompt.name for prompt in chosen),
        **{f"prompt.{prompt.name}": _printable(prompt.text) for prompt in chosen},
    )


def plots(runs: Runs, series: SeriesOf) -> dict[str, Figure]:
    """Draw a bar per prompt: the whole call, and the share of the prefill."""
    shares = Runs(
        replace(run, metrics={**run.metrics, "prefill_share": 100 * share})
        for run, share in zip(runs, prefill_shares(runs), strict=True)
        if share == share
    )
    figures = {
        "latency": bar_plot(runs, "scenario", "total_latency_s", title="Latency of the whole call by prompt"),
        "prefill_share": bar_plot(
            shares,
            "scenario",
            "prefill_share",
            title="Share of the call until the first token (prefill) by prompt",
            y_label="prefill share (% of the call)",
        ),
    }
    for figure in figures.values():
        figure.set_size_inches(9, 4.6)
        for label in figure.axes[0].get_xticklabels():
            label.set(rotation=35, horizontalalignment="right", rotation_mode="anchor")
    return figures


def reading(runs: Runs) -> list[str]:
    """Summarize the spread over the prompts, outliers with their probable cause, and prompts changed by a rule."""
    done = runs.measured("avg_latency_per_token_ms")
    if not done:
        return ["Nothing was measured.", *say.doubts(runs)]
    return [_spread(done), *outlier_lines(done), *_rules(done), *_special(done), *say.doubts(runs)]


def _spread(done: Runs) -> str:
    base, key = done[0], "avg_latency_per_token_ms"
    low, high = (extreme(done, key=lambda run: run.metrics[key]) for extreme in (min, max))
    return (
        f"{base.scenario}: {base.metrics[key]:.1f} ms/token{say.doubt(base)} with {plural(base.params['prompt_tokens_total'], 'prompt token')} and "
        f"{plural(base.params['max_new_tokens'], 'new one')}. All {len(done)} prompts lie between {low.metrics[key]:.1f} ({low.scenario}{say.doubt(low)}) and "
        f"{high.metrics[key]:.1f} ms/token ({high.scenario}{say.doubt(high)}), median {median(done.values(key)):.1f}."
    )


def _rules(done: Runs) -> list[str]:
    rules = [
        f"{run.scenario}: {run.text('prompt_rule').removeprefix(run.scenario + ': ')}"
        for run in done
        if run.has("prompt_rule")
    ]
    return [f"Prompts that a rule changed: {'; '.join(rules)}."] if rules else []


def _special(done: Runs) -> list[str]:
    """State whether the text of special tokens was read as such."""
    known = done.where(lambda run: run.has("special_tokens_in_prompt"))
    run = next((run for run in known if run.scenario == "special_tokens"), None)
    if run is None:
        return []
    count, tokens = run.params["special_tokens_in_prompt"], run.params["prompt_tokens_total"]
    # A BOS that the tokenizer adds to every text does not count.
    if count <= min(other.params["special_tokens_in_prompt"] for other in known):
        return ["special_tokens: this tokenizer has none of the special tokens that the text spells."]
    return [
        f"special_tokens: {count} of its {tokens} tokens are special: the tokenizer reads their text as the tokens "
        "themselves, so a user's text can end a turn unless it is escaped."
    ]


def _printable(text: str, width: int = 200) -> str:
    """Format a text on one line, with control characters escaped."""
    escaped = repr(text)
    return escaped if len(escaped) <= width else escaped[: width - 1] + "…"


def quick(config: Config) -> Config:
    """Return a smaller config for a first look."""
    few = ("plain", "one_token", "empty", "very_long", "code", "emoji_combining")
    return replace(config, max_new_tokens=min(config.max_new_tokens, 8), prompts=few, long_tokens=256)


DECLARED = Declaration(
    "edge_prompts",
    "Do unusual prompts cost more, and does anything break?",
    Config,
    build,
    plots,
    reading,
    position=5,
    quick=quick,
    more="Such as empty ones, ones beyond the context, emoji, control characters.",
    typed=True,
)

main = command(DECLARED)

if __name__ == "__main__":
    main()
