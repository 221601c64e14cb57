"""Write a recommendation for people or for programs."""

from __future__ import annotations

import dataclasses
import json

from llmtrack.decide.recommending import Recommendation


def render_recommendation(found: Recommendation, style: str = "table") -> str:
    """Return a recommendation as text: a sentence and what was ruled out, or JSON."""
    if style == "json":
        return json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False) + "\n"
    lines = [found.sentence]
    if found.run_id is not None:
        lines.append(f"  run {found.run_id}")
    if found.ruled_out:
        width = max(len(name) for name, _ in found.ruled_out)
        lines += ["Not:", *(f"  {name:<{width}}  {why}" for name, why in found.ruled_out)]
    return "\n".join([*lines, *(f"- {note}" for note in found.notes)]) + "\n"
