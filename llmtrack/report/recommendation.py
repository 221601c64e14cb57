"""Format a recommendation: for the terminal, as a pull-request comment, as JSON, and as a slide."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from llmtrack.decide.candidates import QUALITY, gather_candidates
from llmtrack.decide.recommend import Recommendation
from llmtrack.errors import UsageError
from llmtrack.report.escape import in_markdown, in_plot
from llmtrack.report.pareto import pareto_plot
from llmtrack.report.plots.drawing import drawing, save
from llmtrack.report.terminal import hanging
from llmtrack.tracked.runs import Runs

_TITLE_WIDTH = 96


def render_recommendation(recommendation: Recommendation, width: int | None = None) -> str:
    """Format a recommendation for a terminal: a sentence and what was ruled out."""
    lines = [hanging(recommendation.sentence, width, 0)]
    if recommendation.run_id is not None:
        lines.append(f"  run {recommendation.run_id}")
    if recommendation.ruled_out:
        longest = max(len(name) for name, _ in recommendation.ruled_out)
        lines.append("Not:")
        lines += [hanging(f"  {name:<{longest}}  {why}", width, 4) for name, why in recommendation.ruled_out]
    return "\n".join([*lines, *(hanging(f"- {note}", width) for note in recommendation.notes)]) + "\n"


def recommendation_markdown(recommendation: Recommendation, commands: Sequence[str], settings: Sequence[str]) -> str:
    """Format a comment: the answer, the command to run it, the measuring conditions, and a table of the others.

    Args:
        commands: result of `run.reproduce.reproduce_command`: for a shell, then in Python; empty if unknown.
        settings: result of `run.reproduce.run_settings`.
    """
    lines = [f"**{in_markdown(recommendation.sentence)}**"]
    if commands:
        lines.append(f"Run it: `{commands[0]}`")
    if settings:
        lines.append(f"Measured with {', '.join(map(in_markdown, settings))}.")
    if recommendation.ruled_out:
        rows = (f"| {in_markdown(name)} | {in_markdown(why)} |" for name, why in recommendation.ruled_out)
        lines.append("\n".join(["| not | why |", "| --- | --- |", *rows]))
    if recommendation.notes:
        lines.append("\n".join(f"- {in_markdown(note)}" for note in recommendation.notes))
    return "\n\n".join(lines) + "\n"


def recommendation_json(recommendation: Recommendation, commands: Sequence[str], settings: Sequence[str]) -> str:
    """Format a recommendation with the command to run it as JSON; see `recommendation_markdown`."""
    record = dataclasses.asdict(recommendation)
    record |= {
        "command": commands[0] if commands else "",
        "python": "\n".join(commands[1:]),
        "settings": list(settings),
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def draw(recommendation: Recommendation, runs: Runs, objective: str, target: Path) -> None:
    """Draw a slide: the answer above the Pareto plot.

    Raises:
        UsageError: no scenario has a perplexity, so there is no plot.
    """
    candidates = gather_candidates(runs, objective)
    if not any(run.has(QUALITY) for run in candidates.runs):
        raise UsageError("there is nothing to draw: no perplexity was scored (llmtrack run perplexity scores it)")
    with drawing():
        figure = pareto_plot(candidates, objective, QUALITY, recommendation.run_id or "")
        figure.set_size_inches(10, 5.6)
        answer = "\n".join(textwrap.wrap(recommendation.sentence, _TITLE_WIDTH, break_on_hyphens=False))
        figure.suptitle(in_plot(answer), x=0.02, ha="left", fontsize=12, fontweight="bold")
        save(figure, target)
