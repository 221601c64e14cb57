"""The HTML report: one self-contained file, from plain data, that shows where no network is.

Nothing is loaded from elsewhere, so plots are embedded. MLflow shows an HTML artifact in a sandboxed frame, where a link opens
nothing: a run is named by its id, which is a link wherever else the page is opened.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from llmtrack.host.console import shown
from llmtrack.report.phases import Call, Timeline, timeline
from llmtrack.report.table import Table, metric_columns

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Rows:
    """A table, and what each of its rows is: `baseline`, `failed`, `same_as` or nothing special."""

    table: Table
    kinds: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Columns as they are shown: results first, where no scrolling is needed, then the conditions that differ."""
        titles = self.table.titles
        after, last = titles.index("scenario") + 1, len(titles) - 1
        results = {column.title for column in metric_columns()}
        rest = sorted(range(after, last), key=lambda column: titles[column] not in results)
        return (*range(after), last, *rest)


@dataclass(frozen=True)
class Plot:
    """A picture with the words for whoever cannot see it."""

    name: str
    alt: str
    png: bytes


@dataclass(frozen=True)
class GeneratedText:
    """A text that a model generated, and the scenarios that generated it."""

    scenarios: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Section:
    """One experiment.

    Attributes:
        name: of the experiment.
        question: what it asks.
        run_id: MLflow run of its study.
        rows: its table.
        reading: what its numbers say.
        plots: its pictures.
        samples: texts that were generated.
        settings: as resolved.
    """

    name: str
    question: str
    run_id: str
    rows: Rows
    reading: tuple[str, ...]
    plots: tuple[Plot, ...] = ()
    samples: tuple[GeneratedText, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Everything that a report shows.

    Attributes:
        title: heading.
        question: what all of it asks.
        run_id: MLflow run that holds the report.
        conditions: label and value of what was measured, where, and with which versions.
        takeaways: the few lines to read first.
        sections: one for each experiment.
        summary: all runs, a table for each task under its title; none where a section's table is all there is.
        call: the timed call that the diagram of prefill and decoding is drawn from, if one was timed.
        remarks: what the reader must know of how it was measured, such as what a quick run leaves out.
        runs_at: the address to which a run's id is added for its page; empty: no id is a link.
        start: the command that starts MLflow there; empty where a server runs.
    """

    title: str
    question: str
    run_id: str
    conditions: tuple[tuple[str, str], ...]
    takeaways: tuple[str, ...]
    sections: tuple[Section, ...]
    summary: Mapping[str, Rows] = field(default_factory=dict)
    call: Call | None = None
    remarks: tuple[str, ...] = ()
    runs_at: str = ""
    start: str = ""


GLOSSARY = (
    ("token", "the piece of text that a model reads and writes: a short word or a part of one"),
    ("prefill", "the pass over the whole prompt, at whose end the first new token is chosen"),
    ("decode", "the steps after it, each of which makes one further token of every row"),
    ("TTFT", "time to first token: from the call to the first new token"),
    ("ITL", "inter-token latency: the mean gap between consecutive new tokens"),
    ("latency s", "seconds of the whole call"),
    ("tokens/s", "new tokens of all rows per second of the whole call"),
    ("ms/token", "milliseconds of the whole call per new token of a row"),
    ("batch", "prompts that are generated from together; each is a row"),
    ("KV cache", "keys and values of the tokens so far, kept so that no step computes them again"),
    ("MBU", "memory bandwidth utilization: the share of the device's copy bandwidth that decoding reaches"),
    (
        "roofline, floor",
        "the least time that the device could take: for the bytes that must be moved at its copy bandwidth, or for the "
        "operations at its rate of matrix products, whichever takes longer",
    ),
    ("MFU", "model FLOPs utilization: the share of the device's rate of matrix products that is reached"),
    ("loss, perplexity", "how badly the model predicts a text, lower is better; perplexity is exp(loss)"),
    ("peak MiB", "most memory in use while it was measured"),
    ("baseline", "the scenario that the others of its experiment are compared with"),
    (
        "no significant difference",
        "no difference was shown: the repeats of both could be of one speed, or equal settings differed by as much",
    ),
)


def render_report(report: Report) -> str:
    """Return a report as the text of one HTML file."""
    drawn: Timeline | None = timeline(report.call) if report.call else None
    return page_template().render(report=report, drawn=drawn, glossary=GLOSSARY)


@cache
def page_template() -> Template:
    """Return the page's template, compiled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Escaping is on for every template, whatever its name: texts come from models and prompts.
    templates = Environment(
        loader=PackageLoader("llmtrack.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: shown(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    return templates.get_template("report.html.j2")
