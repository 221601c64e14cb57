"""The lines to read first: a joint interpretation of several studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from llmtrack import metrics as schema
from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.differences import Difference, change_text, difference_text
from llmtrack.decide.noise_floor import noise_floor_lines, with_context
from llmtrack.decide.significance import Ratio
from llmtrack.decide.verdicts import difference_between, is_disturbed, measure_command
from llmtrack.host.formatting import plural
from llmtrack.report.sentences.reading import bandwidth, in_doubt
from llmtrack.tracked.run import VARIANT, Run
from llmtrack.tracked.runs import Runs

# Settings that a user can choose, and how they are described.
CHOICES = tuple(
    (param.name, param.choice or f"{param.name} {{}}")
    for param in schema.PARAMS
    if param.role == "configuration" and param.choice is not None
)


_OF_A_CALL = ("time_to_first_token_ms", "inter_token_latency_ms", "total_latency_s", "prompt_tokens_total")


@dataclass(frozen=True)
class Gain:
    """Difference of a run from its study's baseline in tokens/s."""

    run: Run
    base: Run
    difference: Difference

    @property
    def ratio(self) -> Ratio:
        """Ratio of the medians."""
        assert self.difference.ratio is not None  # ensured by `gains`
        return self.difference.ratio

    @property
    def disturbed(self) -> list[str]:
        """Names of the disturbed ones of both, from which nothing can be concluded."""
        return [run.name for run in (self.run, self.base) if is_disturbed(run)]


def takeaways(runs: Runs) -> list[str]:
    """Return 1 to 5 lines supported by the runs of a suite.

    The biggest win over its study's baseline and its cost, what to avoid, where the time of a call goes and what limits
    it, and what failed. Differences within noise or the noise floor count as neither win nor loss; nor do those of
    disturbed runs.
    """
    runs = with_context(runs)
    compared = gains(runs)
    wins = [gain for gain in compared if gain.difference.verdict == "better"]
    losses = [gain for gain in compared if gain.difference.verdict == "worse" and not gain.disturbed]
    unknown = [gain for gain in compared if gain.difference.verdict == "unknown"]
    lines = []
    undisturbed = [gain for gain in wins if not gain.disturbed]
    if undisturbed:
        best = _plainest(undisturbed, lambda gain: gain.ratio.value)
        lines += [f"Biggest win: {_gives(best)}", f"What it costs: {_cost(best, runs)}."]
    elif wins:
        names = list(dict.fromkeys(name for gain in wins for name in gain.disturbed))
        lines.append(_inconclusive("Whether anything beat its baseline", names, wins[0].run))
    elif len(unknown) < len(compared):
        lines.append("No scenario was significantly faster than the baseline of its experiment.")
    if losses:
        lines.append(f"To avoid: {_gives(_plainest(losses, lambda gain: -gain.ratio.value))}")
    if compared and not wins and not losses:
        lines += _count_inconclusive(unknown)
    return (
        lines + noise_floor_lines(runs, "tokens_per_sec") + _where_time_goes(runs) + runs.unfinished(experiments=True)
    )


def headline(runs: Runs) -> dict[str, float]:
    """Compute the headline metrics of a study or suite, for its own run."""
    done = runs.finished
    figures = {
        "scenarios_measured": float(sum(not run.is_same_as for run in done)),
        "scenarios_failed": float(len(runs) - len(done)),
    }
    timed = runs.measured("tokens_per_sec")
    # The luckiest disturbed run does not represent this machine.
    timed = timed.where(lambda run: not is_disturbed(run)) or timed
    if timed:
        figures["best_tokens_per_sec"] = max(timed.values("tokens_per_sec"))
    wins = [gain.ratio.value for gain in gains(runs) if gain.difference.verdict == "better" and not gain.disturbed]
    return figures | ({"best_gain": max(wins)} if wins else {})


def gains(runs: Runs) -> list[Gain]:
    """Compare the speed of each run with its study's baseline of the same work, significant or not.

    Runs of different work are not compared: a shorter prompt is not a win.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in with_context(runs).measured("tokens_per_sec"):
        if run.study_id and run.workload_id:
            groups.setdefault((run.study_id, run.workload_id), []).append(run)
    compared: list[Gain] = []
    for same_work in groups.values():
        base = Runs(same_work).baseline
        if base is None:
            continue
        compared += [
            Gain(run, base, difference_between(base, run, "tokens_per_sec"))
            for run in same_work
            if run.run_id != base.run_id
        ]
    return [gain for gain in compared if gain.difference.ratio is not None]


def _count_inconclusive(unknown: list[Gain]) -> list[str]:
    """Count the inconclusive comparisons, with the command to measure more."""
    if not unknown:
        return []
    repeats = max(gain.difference.repeats_needed for gain in unknown)
    first = unknown[0]
    return [
        f"{plural(len(unknown), 'comparison')} of speed {'is' if len(unknown) == 1 else 'are'} inconclusive, such as "
        f"{first.run.name} against {first.base.name} ({first.difference.why}); to settle it run: "
        f"{measure_command(first.run, repeats)}"
    ]


def _plainest(gains: list[Gain], size: Callable[[Gain], float]) -> Gain:
    """Choose the biggest win or loss.

    Among those not significantly different from it, prefer one that generates the same tokens and changes a single
    setting, since the effect of further changes is unknown.
    """
    biggest = max(gains, key=size)
    alike = [
        gain
        for gain in gains
        if gain is not biggest
        and difference_between(biggest.run, gain.run, "tokens_per_sec").verdict in ("same", "unknown")
    ]
    return max([biggest, *alike], key=lambda gain: (_same_tokens(gain) is True, -len(_changes(gain)), size(gain)))


def _same_tokens(gain: Gain) -> bool | None:
    """Return whether both generated the same tokens; None if unknown."""
    if not gain.run.has("output_digest") or not gain.base.has("output_digest"):
        return None
    return gain.run.agrees(gain.base, "output_digest")


def _gives(gain: Gain) -> str:
    changes = ", ".join(_changes(gain)) or f"{gain.run.scenario} instead of {gain.base.scenario}"
    difference = gain.difference
    return (
        f"{changes} gives {difference_text(difference)} the tokens/s ({_conditions(gain.run)}){in_doubt(difference)}."
    )


def _changes(gain: Gain) -> list[str]:
    """Describe the settings that a run changes relative to its baseline."""
    return [
        f"{form.format(_on_or_off(gain.run.get(key)))} instead of {_on_or_off(gain.base.get(key))}"
        for key, form in CHOICES
        if gain.run.has(key) and gain.base.has(key) and not gain.run.agrees(gain.base, key)
    ]


def _conditions(run: Run) -> str:
    return (
        f"experiment {run.experiment}: {run.text('model_id')} on {run.text('device')}, {plural(run.params['prompt_tokens'], 'prompt token')}, "
        f"{plural(run.params['max_new_tokens'], 'new one')}"
    )


def _on_or_off(value: object) -> str:
    return {"True": "on", "False": "off"}.get(str(value), str(value))


def _cost(gain: Gain, runs: Runs) -> str:
    parts = []
    both = (gain.base, gain.run)
    if not gain.run.agrees(gain.base, "batch_size") and all(run.has("batch_latency_s") for run in both):
        before, after = (run.metrics["batch_latency_s"] for run in both)
        parts.append(f"a sample waits {after:.2f} s for its batch instead of {before:.2f} s")
    parts.append(_quality(gain, runs))
    return "; ".join(parts)


def _quality(gain: Gain, runs: Runs) -> str:
    """Describe the quality cost of a win, as far as measured."""
    parts = []
    if not gain.run.agrees(gain.base, *VARIANT) and (scored := _perplexities(gain, runs)):
        before, after = scored
        parts.append(f"perplexity goes from {before:.3f} to {after:.3f} ({change_text(after / before)})")
    same = _same_tokens(gain)
    if same is not None:
        parts.append(f"the generated tokens are {'equal to' if same else 'other than'} the baseline's")
    return ", and ".join(parts) or "quality was not measured"


def _perplexities(gain: Gain, runs: Runs) -> tuple[float, float] | None:
    """Return the perplexities of the baseline's and the winner's variant, by one convention on the same tokens."""
    scored = runs.measured("perplexity")
    of_base, of_run = ([run for run in scored if run.agrees(side, *VARIANT)] for side in (gain.base, gain.run))
    for before, after in product(of_base, of_run):
        if before.agrees(after, "workload_id") and not why_not_comparable(before, after, "perplexity"):
            return before.metrics["perplexity"], after.metrics["perplexity"]
    return None


def plain_call(runs: Runs) -> Run | None:
    """Choose a run that illustrates prefill and decoding: one prompt, with cache, preferably the baseline."""
    suitable = runs.finished.where(
        lambda run: (
            all(map(run.has, _OF_A_CALL))
            and run.params.get("batch_size") == 1
            and run.params.get("prompt_tokens") == run.params["prompt_tokens_total"]
            and run.params.get("use_cache") is not False
        )
    )
    of_baseline = suitable.where(lambda run: run.experiment == "baseline")
    return next(iter(of_baseline or suitable.where(lambda run: run.baseline) or suitable), None)


def _inconclusive(question: str, disturbed: Sequence[str], run: Run) -> str:
    """Report a question as inconclusive because of disturbed scenarios, with the command to measure one again."""
    return (
        f"{question} is inconclusive: {', '.join(disturbed)} {'was' if len(disturbed) == 1 else 'were'} disturbed; to settle it "
        f"run: {measure_command(run)}"
    )


def _where_time_goes(runs: Runs) -> list[str]:
    """Describe how a plain call divides into prefill and decoding, and what limits decoding, unless it was disturbed."""
    run = plain_call(runs.where(lambda run: not is_disturbed(run)))
    if run is None:
        run = plain_call(runs)
        return [] if run is None else [_inconclusive("Where the time goes", [run.scenario], run)]
    share = run.metrics["time_to_first_token_ms"] / 1000 / run.metrics["total_latency_s"]
    line = (
        f"Where the time goes: with {plural(run.params['prompt_tokens_total'], 'prompt token')} and {plural(run.params['max_new_tokens'], 'new one')} the "
        f"prefill is {share:.0%} of the call."
    )
    return [" ".join([line, *bandwidth(run)])]
