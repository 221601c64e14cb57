"""Escape untrusted text (folder names, prompts, reasons) for each output format."""

from __future__ import annotations

import html
import re

from rich.text import Text

from llmtrack.host.console import neutralize, on_one_line
from llmtrack.host.formatting import truncate

_IN_MARKDOWN = {character: f"\\{character}" for character in "\\`*[]|~"} | {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "$": "&#36;",
}
# An underscore within a word, as in prompt_16, is literal.
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_IN_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    # After the end of a row, a bracket would start an argument.
    "[": "{[}",
    "]": "{]}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_LONGEST_IN_PLOT = 60


def plain(text: str, style: str = "") -> Text:
    """Wrap a text for a console, so that markup and `:emoji:` are not interpreted."""
    return Text(neutralize(text), style=style)


def in_markdown(text: str) -> str:
    """Escape a text for a line or cell of Markdown: no links, HTML, emphasis or formulas."""
    escaped = "".join(_IN_MARKDOWN.get(character, character) for character in on_one_line(text))
    return _EMPHASIS.sub(r"\\_", escaped)


def in_html(text: str) -> str:
    """Escape a text for an HTML element or attribute."""
    return html.escape(neutralize(text))


def in_latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_IN_LATEX.get(character, character) for character in on_one_line(text))


def in_plot(text: str) -> str:
    """Escape a text for Matplotlib (`$`), keeping its lines."""
    escaped = neutralize(text).replace("$", r"\$")
    # Matplotlib omits labels that start with an underscore from legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def as_label(text: str) -> str:
    """Format a name as an axis or legend label, truncated."""
    return in_plot(truncate(on_one_line(text), _LONGEST_IN_PLOT))
