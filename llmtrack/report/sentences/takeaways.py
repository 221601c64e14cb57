"""The lines to read first: a joint interpretation of several studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmtrack import metrics as schema
from llmtrack.decide.differences import Difference, Ratio, change_text, in_figures
from llmtrack.decide.noise_floor import in_context, say_floor
from llmtrack.decide.verdicts import is_disturbed, measure_more, tell, why_not
from llmtrack.host.formatting import plural
from llmtrack.report.sentences.reading import bandwidth, in_doubt
from llmtrack.tracked.run import VARIANT, Run
from llmtrack.tracked.runs import Runs

# Settings that a user can choose, and how they are described.
CHOICES = tuple(
    (each.name, each.choice or f"{each.name} {{}}")
    for each in schema.PARAMS
    if each.role == "configuration" and each.choice is not None
)


@dataclass(frozen=True)
class Gain:
    """Speed of a run relative to its baseline.

    Attributes:
        base: baseline of its study.
        found: difference in tokens/s.
    """

    run: Run
    base: Run
    found: Difference

    @property
    def ratio(self) -> Ratio:
        """Ratio of the medians."""
        assert self.found.ratio is not None  # ensured by `gains`
        return self.found.ratio

    @property
    def disturbed(self) -> list[str]:
        """Names of disturbed runs among both, from which nothing can be concluded."""
        return [each.name for each in (self.run, self.base) if is_disturbed(each)]


def takeaways(runs: Runs) -> list[str]:
    """Return 1 to 5 lines supported by the runs of a suite.

    The biggest win over its study's baseline and its cost, what to avoid, where the time of a call goes and what limits
    it, and what failed. Differences within noise or the noise floor count as neither win nor loss; nor do those of
    disturbed runs.
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
    return lines + say_floor(runs, "tokens_per_sec") + _where_time_goes(runs) + runs.unfinished(experiments=True)


def headline(runs: Runs) -> dict[str, float]:
    """Return the headline metrics of a study or suite, for its own run."""
    done = runs.finished
    found = {
        "scenarios_measured": float(sum(not run.is_same_as for run in done)),
        "scenarios_failed": float(len(runs) - len(done)),
    }
    timed = runs.measured("tokens_per_sec")
    # The luckiest disturbed run does not represent this machine.
    timed = timed.where(lambda run: not is_disturbed(run)) or timed
    if timed:
        found["best_tokens_per_sec"] = max(timed.values("tokens_per_sec"))
    wins = [gain.ratio.value for gain in gains(runs) if gain.found.verdict == "better" and not gain.disturbed]
    return found | ({"best_gain": max(wins)} if wins else {})


def gains(runs: Runs) -> list[Gain]:
    """Return the speed of each run relative to its study's baseline of the same work, significant or not.

    Runs of different work are not compared: a shorter prompt is not a win.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in in_context(runs).measured("tokens_per_sec"):
        if run.study_id and run.workload_id:
            groups.setdefault((run.study_id, run.workload_id), []).append(run)
    found = []
    for same_work in groups.values():
        base = Runs(same_work).baseline
        if base is None:
            continue
        others = [run for run in same_work if run.run_id != base.run_id]
        differences = zip(others, tell(base, others, "tokens_per_sec"), strict=True)
        found += [Gain(run, base, each) for run, each in differences if each.ratio is not None]
    return found


def _cannot_tell(unknown: list[Gain]) -> list[str]:
    """Count the inconclusive comparisons, with the command to measure more."""
    if not unknown:
        return []
    repeats = max(gain.found.repeats_needed for gain in unknown)
    first = unknown[0]
    return [
        f"{plural(len(unknown), 'comparison')} of speed {'is' if len(unknown) == 1 else 'are'} inconclusive, such as "
        f"{first.run.name} against {first.base.name} ({first.found.why}); to settle it run: "
        f"{measure_more(first.run, repeats)}"
    ]


def _plainest(gains: list[Gain], size: Callable[[Gain], float]) -> Gain:
    """Return the biggest win or loss.

    Among those not significantly different from it, prefer one that generates the same tokens and changes a single
    setting, since the effect of further changes is unknown.
    """
    biggest = max(gains, key=size)
    others = [gain for gain in gains if gain is not biggest]
    differences = tell(biggest.run, [gain.run for gain in others], "tokens_per_sec")
    alike = [gain for gain, found in zip(others, differences, strict=True) if found.verdict in ("same", "unknown")]
    return max([biggest, *alike], key=lambda gain: (_same_tokens(gain) is True, -len(_changed(gain)), size(gain)))


def _same_tokens(gain: Gain) -> bool | None:
    """Return whether both generated the same tokens; None if unknown."""
    if not gain.run.has("output_digest") or not gain.base.has("output_digest"):
        return None
    return gain.run.agrees(gain.base, "output_digest")


def _gives(gain: Gain) -> str:
    return f"{_what(gain)} gives {in_figures(gain.found)} the tokens/s ({_where(gain)}){in_doubt(gain.found)}."


def _what(gain: Gain) -> str:
    return ", ".join(_changed(gain)) or f"{gain.run.scenario} instead of {gain.base.scenario}"


def _changed(gain: Gain) -> list[str]:
    """Describe the settings that a run changes relative to its baseline."""
    return [
        f"{form.format(_word(gain.run.get(key)))} instead of {_word(gain.base.get(key))}"
        for key, form in CHOICES
        if gain.run.has(key) and gain.base.has(key) and not gain.run.agrees(gain.base, key)
    ]


def _where(gain: Gain) -> str:
    run = gain.run
    return (
        f"experiment {run.experiment}: {run.text('model_id')} on {run.text('device')}, {plural(run.params['prompt_tokens'], 'prompt token')}, "
        f"{plural(run.params['max_new_tokens'], 'new one')}"
    )


def _word(value: object) -> str:
    return {"True": "on", "False": "off"}.get(str(value), str(value))


def _cost(gain: Gain, runs: Runs) -> str:
    parts = []
    if _differ(gain.run, gain.base, "batch_size") and all(
        each.has("batch_latency_s") for each in (gain.run, gain.base)
    ):
        before, after = (each.metrics["batch_latency_s"] for each in (gain.base, gain.run))
        parts.append(f"a sample waits {after:.2f} s for its batch instead of {before:.2f} s")
    parts.append(_quality(gain, runs))
    return "; ".join(parts)


def _quality(gain: Gain, runs: Runs) -> str:
    """Describe the quality cost of a win, as far as measured."""
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


def _differ(one: Run, other: Run, key: str) -> bool:
    return not one.agrees(other, key)


def _perplexities(gain: Gain, runs: Runs) -> tuple[float, float] | None:
    """Return the perplexities of the baseline's and the winner's variant, by one convention on the same tokens."""
    scored = runs.measured("perplexity")
    found = []
    for wanted in (gain.base, gain.run):
        alike = [run for run in scored if run.agrees(wanted, *VARIANT)]
        found.append(alike)
    for before in found[0]:
        for after in found[1]:
            if not _differ(before, after, "workload_id") and not why_not(before, after, "perplexity"):
                return before.metrics["perplexity"], after.metrics["perplexity"]
    return None


def plain_call(runs: Runs) -> Run | None:
    """Return a run to illustrate prefill and decoding: one prompt, with cache, preferably the baseline."""
    fit = runs.finished.where(
        lambda run: (
            all(map(run.has, _OF_A_CALL))
            and run.params.get("batch_size") == 1
            and run.params.get("prompt_tokens") == run.params["prompt_tokens_total"]
            and run.params.get("use_cache") is not False
        )
    )
    for preferred in (
        fit.where(lambda run: run.experiment == "baseline"),
        fit.where(lambda run: run.baseline),
        fit,
    ):
        if preferred:
            return preferred[0]
    return None


_OF_A_CALL = ("time_to_first_token_ms", "inter_token_latency_ms", "total_latency_s", "prompt_tokens_total")


def _not_known(what: str, disturbed: Sequence[str], run: Run) -> str:
    """Report a question as inconclusive because of disturbed scenarios, with the command to measure one again."""
    return (
        f"{what} is inconclusive: {', '.join(disturbed)} {'was' if len(disturbed) == 1 else 'were'} disturbed; to settle it "
        f"run: {measure_more(run)}"
    )


def _where_time_goes(runs: Runs) -> list[str]:
    """Describe how a plain call divides into prefill and decoding, and what limits decoding, unless it was disturbed."""
    run = plain_call(runs.where(lambda run: not is_disturbed(run)))
    if run is None:
        run = plain_call(runs)
        return [] if run is None else [_not_known("Where the time goes", [run.scenario], run)]
    share = run.metrics["time_to_first_token_ms"] / 1000 / run.metrics["total_latency_s"]
    line = (
        f"Where the time goes: with {plural(run.params['prompt_tokens_total'], 'prompt token')} and {plural(run.params['max_new_tokens'], 'new one')} the "
        f"prefill is {share:.0%} of the call."
    )
    return [" ".join([line, *bandwidth(run)])]
