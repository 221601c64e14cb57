"""The few lines to read first: what the tracked numbers of several studies say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.decide.comparability import why_not
from llmtrack.decide.differences import Difference, in_figures
from llmtrack.decide.family import in_context
from llmtrack.decide.floor import say_floor
from llmtrack.decide.significance import Ratio
from llmtrack.decide.verdicts import is_disturbed, measure_more, tell
from llmtrack.decide.wording import change_text
from llmtrack.report.plots import measured
from llmtrack.report.reading import bandwidth, in_doubt
from llmtrack.tracking import ask
from llmtrack.tracking.cells import VARIANT, keys
from llmtrack.words import plural

if TYPE_CHECKING:
    import pandas as pd

# What a user can choose, and how it is written.
CHOICES = tuple(
    (each.name, each.choice or f"{each.name} {{}}")
    for each in schema.PARAMS
    if each.role == "configuration" and each.choice is not None
)


@dataclass(frozen=True)
class Gain:
    """How a run's tokens/s compare with its baseline's.

    Attributes:
        run: the run.
        base: the baseline of its study.
        found: the difference.
    """

    run: pd.Series
    base: pd.Series
    found: Difference

    @property
    def ratio(self) -> Ratio:
        """Ratio of the medians."""
        assert self.found.ratio is not None  # else nothing was gained or lost: see `gains`
        return self.found.ratio

    @property
    def disturbed(self) -> list[str]:
        """Those of both that were disturbed: nothing is learned from them."""
        return [ask.name(each) for each in (self.run, self.base) if is_disturbed(each)]


def takeaways(runs: pd.DataFrame) -> list[str]:
    """Return 1 to 5 lines that the runs of a suite (`llmtrack.runs`) bear out.

    The biggest win against its study's baseline and what it costs, what to avoid, where the time of a call
    goes and what limits it, and what failed. A difference within noise, or no larger than equal settings differed in the
    suite, is no win and no loss; nor is one of a run that was disturbed.
    """
    runs = in_context(runs)
    compared = gains(runs)
    found = [gain for gain in compared if gain.found.verdict != "unknown"]
    wins = [gain for gain in found if gain.found.verdict == "better"]
    losses = [gain for gain in found if gain.found.verdict == "worse" and not gain.disturbed]
    lines = []
    sure = [gain for gain in wins if not gain.disturbed]
    if sure:
        best = _plainest(sure, lambda gain: gain.ratio.value)
        lines += [f"Biggest win: {_gives(best)}", f"What it costs: {_cost(best, runs)}."]
    elif wins:
        names = list(dict.fromkeys(name for gain in wins for name in gain.disturbed))
        lines.append(_not_known("Whether anything beat its baseline", names, wins[0].run))
    elif found:
        lines.append("No scenario was significantly faster than the baseline of its experiment.")
    if losses:
        lines.append(f"To avoid: {_gives(_plainest(losses, lambda gain: -gain.ratio.value))}")
    if compared and not wins and not losses:
        lines += _cannot_tell([gain for gain in compared if gain.found.verdict == "unknown"])
    return (
        lines
        + say_floor(runs, "tokens_per_sec")
        + _where_time_goes(runs)
        + ask.unfinished(runs, experiments=True)
    )


def headline(runs: pd.DataFrame) -> dict[str, float]:
    """Return what a study or suite came to, as metrics of its own run."""
    same = ask.where(runs, "outcome", "same_as")
    done = ask.where(runs, "status", ask.FINISHED)
    found = {
        "scenarios_measured": float((done & ~same).sum()),
        "scenarios_failed": float((~done).sum()),
    }
    timed = measured(runs, "tokens_per_sec")
    # The luckiest of those that were disturbed is no speed of this machine.
    steady = timed[[not is_disturbed(run) for run in ask.rows(timed, "warnings")]]
    timed = steady if len(steady) else timed
    if len(timed):
        found["best_tokens_per_sec"] = float(timed["tokens_per_sec"].max())
    wins = [gain.ratio.value for gain in gains(runs) if gain.found.verdict == "better" and not gain.disturbed]
    return found | ({"best_gain": max(wins)} if wins else {})


def gains(runs: pd.DataFrame) -> list[Gain]:
    """Return how each run compares with its study's baseline of the same work, told or not.

    Runs of other work are not compared: a shorter prompt is no win.
    """
    timed = measured(in_context(runs), "tokens_per_sec")
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(keys(timed, ("study_id", "workload_id"))):
        if all(key):
            groups.setdefault(key, []).append(row)
    found = []
    for rows in groups.values():
        if len(rows) < 2:
            continue
        same_work = timed.iloc[rows]
        bases = same_work[ask.marked(same_work, "baseline")]
        if bases.empty:
            continue
        base = bases.iloc[0]
        others = [run for _, run in same_work.iterrows() if run["run_id"] != base["run_id"]]
        told = zip(others, tell(base, others, "tokens_per_sec"), strict=True)
        found += [Gain(run, base, each) for run, each in told if each.ratio is not None]
    return found


def _cannot_tell(unknown: list[Gain]) -> list[str]:
    """Say of how many comparisons nothing can be said, and how to measure more."""
    if not unknown:
        return []
    repeats = max(gain.found.repeats_needed for gain in unknown)
    first = unknown[0]
    return [
        f"{plural(len(unknown), 'comparison')} of speed {'is' if len(unknown) == 1 else 'are'} inconclusive, such as "
        f"{ask.name(first.run)} against {ask.name(first.base)} ({first.found.why}); to settle it run: "
        f"{measure_more(first.run, repeats)}"
    ]


def _plainest(gains: list[Gain], size: Callable[[Gain], float]) -> Gain:
    """Return the biggest of some wins, or losses.

    Among those that are not told from it, it is one that generates the same tokens, and that changes one thing at a time: of
    what is changed besides it is not known whether it helps.
    """
    biggest = max(gains, key=size)
    others = [gain for gain in gains if gain is not biggest]
    told = tell(biggest.run, [gain.run for gain in others], "tokens_per_sec")
    alike = [gain for gain, found in zip(others, told, strict=True) if found.verdict in ("same", "unknown")]
    return max(
        [biggest, *alike], key=lambda gain: (_same_tokens(gain) is True, -len(_changed(gain)), size(gain))
    )


def _same_tokens(gain: Gain) -> bool | None:
    """Return whether both generated the same tokens; None if that was not tracked."""
    if not ask.has(gain.run, "output_digest") or not ask.has(gain.base, "output_digest"):
        return None
    return bool(gain.run["output_digest"] == gain.base["output_digest"])


def _gives(gain: Gain) -> str:
    return (
        f"{_what(gain)} gives {in_figures(gain.found)} the tokens/s ({_where(gain)}){in_doubt(gain.found)}."
    )


def _what(gain: Gain) -> str:
    return ", ".join(_changed(gain)) or f"{gain.run['scenario']} instead of {gain.base['scenario']}"


def _changed(gain: Gain) -> list[str]:
    """Return what a run changes against its baseline, in words."""
    return [
        f"{form.format(_word(gain.run[key]))} instead of {_word(gain.base[key])}"
        for key, form in CHOICES
        if ask.has(gain.run, key) and ask.has(gain.base, key) and gain.run[key] != gain.base[key]
    ]


def _where(gain: Gain) -> str:
    run = gain.run
    return (
        f"experiment {run['experiment']}: {run['model_id']} on {run['device']}, {plural(run['prompt_tokens'], 'prompt token')}, "
        f"{plural(run['max_new_tokens'], 'new one')}"
    )


def _word(value: object) -> str:
    return {"True": "on", "False": "off"}.get(str(value), str(value))


def _cost(gain: Gain, runs: pd.DataFrame) -> str:
    parts = []
    if _differ(gain.run, gain.base, "batch_size") and all(
        ask.has(each, "batch_latency_s") for each in (gain.run, gain.base)
    ):
        before, after = (float(each["batch_latency_s"]) for each in (gain.base, gain.run))
        parts.append(f"a sample waits {after:.2f} s for its batch instead of {before:.2f} s")
    parts.append(_quality(gain, runs))
    return "; ".join(parts)


def _quality(gain: Gain, runs: pd.DataFrame) -> str:
    """Say what a win costs in quality, as far as that was measured."""
    parts = []
    if any(_differ(gain.run, gain.base, key) for key in VARIANT):
        scored = _perplexities(gain, runs)
        if scored:
            before, after = scored
            parts.append(f"perplexity goes from {before:.3f} to {after:.3f} ({change_text(after / before)})")
    same = _same_tokens(gain)
    if same is not None:
        parts.append(f"the generated tokens are {'equal to' if same else 'other than'} the baseline's")
    return ", and ".join(parts) or "quality was not measured"


def _differ(one: pd.Series, other: pd.Series, key: str) -> bool:
    return not ask.equal(one, other, key)


def _perplexities(gain: Gain, runs: pd.DataFrame) -> tuple[float, float] | None:
    """Return the perplexity of the baseline's variant and of the winner's, scored by one convention on the same tokens."""
    scored = measured(runs, "perplexity")
    found = []
    for wanted in (gain.base, gain.run):
        alike = [run for _, run in scored.iterrows() if not any(_differ(run, wanted, key) for key in VARIANT)]
        found.append(alike)
    for before in found[0]:
        for after in found[1]:
            if not _differ(before, after, "workload_id") and not why_not(before, after, "perplexity"):
                return float(before["perplexity"]), float(after["perplexity"])
    return None


def plain_call(runs: pd.DataFrame) -> pd.Series | None:
    """Return the run to explain prefill and decoding by: one prompt, with the cache; the baseline's if it is there."""
    needed = ["time_to_first_token_ms", "inter_token_latency_ms", "total_latency_s", "prompt_tokens_total"]
    if any(key not in runs.columns for key in needed):
        return None
    fit = (
        ask.where(runs, "status", ask.FINISHED)
        & runs[needed].notna().all(axis="columns")
        & ask.where(runs, "batch_size", 1)
        & (runs["prompt_tokens"] == runs["prompt_tokens_total"]).fillna(False).astype(bool)
        & ~ask.where(runs, "use_cache", False)
    )
    for preferred in (ask.where(runs, "experiment", "baseline"), ask.marked(runs, "baseline"), fit):
        if (chosen := (fit & preferred).to_numpy()).any():
            return runs.iloc[int(chosen.argmax())]
    return None


def _not_known(what: str, disturbed: Sequence[str], run: pd.Series) -> str:
    """Say that something is not known, since scenarios were disturbed, and the command that measures one of them again."""
    return (
        f"{what} is not known: {', '.join(disturbed)} {'was' if len(disturbed) == 1 else 'were'} disturbed. "
        f"Measure again: {measure_more(run)}"
    )


def _where_time_goes(runs: pd.DataFrame) -> list[str]:
    """Say how a plain call divides into prefill and decoding, and what limits decoding; of one that was disturbed, that."""
    run = plain_call(runs[[not is_disturbed(run) for run in ask.rows(runs, "warnings")]])
    if run is None:
        run = plain_call(runs)
        return [] if run is None else [_not_known("Where the time goes", [str(run["scenario"])], run)]
    share = float(run["time_to_first_token_ms"]) / 1000 / float(run["total_latency_s"])
    line = (
        f"Where the time goes: with {plural(run['prompt_tokens_total'], 'prompt token')} and {plural(run['max_new_tokens'], 'new one')} the "
        f"prefill is {share:.0%} of the call."
    )
    return [" ".join([line, *bandwidth(run)])]
