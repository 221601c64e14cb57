"""Make a text from outside (a folder's name, a prompt, a reason) mean itself wherever it is shown.

Each kind of page has its own characters that it would obey instead of showing them.
"""

from __future__ import annotations

import html
import re

from rich.text import Text

from llmtrack.host.console import on_one_line, shown
from llmtrack.host.words import cut

_IN_MARKDOWN = {character: f"\\{character}" for character in "\\`*[]|~"} | {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "$": "&#36;",
}
# Between letters or digits it is only itself, as in prompt_16.
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_IN_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    # Behind the end of a row a bracket would begin an argument.
    "[": "{[}",
    "]": "{]}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_LONGEST_IN_PLOT = 60


def plain(text: str, style: str = "") -> Text:
    """Return a text for a console, in which neither markup nor `:emoji:` is looked for."""
    return Text(shown(text), style=style)


def in_markdown(text: str) -> str:
    """Return a text for one line or cell of Markdown: no links, no HTML, no emphasis, no formulas."""
    escaped = "".join(_IN_MARKDOWN.get(character, character) for character in on_one_line(text))
    return _EMPHASIS.sub(r"\\_", escaped)


def in_html(text: str) -> str:
    """Return a text for HTML, in an element or an attribute."""
    return html.escape(shown(text))


def in_latex(text: str) -> str:
    """Return a text for LaTeX."""
    return "".join(_IN_LATEX.get(character, character) for character in on_one_line(text))


def in_plot(text: str) -> str:
    """Return a text for Matplotlib, where no `$` begins a formula; its lines stay."""
    escaped = shown(text).replace("$", r"\$")
    # A label that begins with an underscore is left out of legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def as_label(text: str) -> str:
    """Return a name for an axis or a legend of a plot, cut where it would push the plot away."""
    return in_plot(cut(on_one_line(text), _LONGEST_IN_PLOT))
