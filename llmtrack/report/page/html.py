"""The HTML report: one self-contained file, rendered from plain data, that works offline.

Nothing is loaded from elsewhere, so plots are embedded. MLflow shows HTML artifacts in a sandboxed frame where links do
nothing, so runs are shown by id, which is a link elsewhere.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from llmtrack.host.console import neutralize
from llmtrack.report.tables.table import Table, metric_columns

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH = 960.0
"""Width of the diagram of prefill and decoding."""
MOST_STEPS = 120
"""More steps are drawn as one block, because separate lines would merge."""
GLOSSARY = (
    ("token", "the piece of text that a model reads and writes: a short word or a part of one"),
    ("prefill", "the pass over the whole prompt, which ends with the first new token"),
    ("decode", "the steps after prefill, each of which adds one token to every row"),
    ("TTFT", "time to first token: from the call to the first new token"),
    ("ITL", "inter-token latency: the mean gap between consecutive new tokens"),
    ("latency s", "seconds of the whole call"),
    ("tokens/s", "new tokens of all rows per second of the whole call"),
    ("ms/token", "milliseconds of the whole call per new token of a row"),
    ("batch", "prompts that are processed in one call; each is a row"),
    ("KV cache", "stored keys and values of earlier tokens, so that no step recomputes them"),
    ("MBU", "memory bandwidth utilization: the share of the device's copy bandwidth that decoding reaches"),
    (
        "roofline, floor",
        "the shortest time that the device could take: for the bytes to move at its copy bandwidth, or for the operations "
        "at its rate of matrix products, whichever takes longer",
    ),
    ("MFU", "model FLOPs utilization: the share of the device's rate of matrix products that is reached"),
    ("loss, perplexity", "how badly the model predicts a text, lower is better; perplexity is exp(loss)"),
    ("peak MiB", "peak memory while measuring"),
    ("baseline", "the scenario with which the others of its experiment are compared"),
    (
        "no significant difference",
        "the repeats of both are compatible with equal speed, or equal settings differed by as much",
    ),
)


@dataclass(frozen=True)
class Rows:
    """A table with the kind of each row: `baseline`, `failed`, `same_as` or empty."""

    table: Table
    kinds: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Column order: results first, visible without scrolling, then the differing conditions."""
        titles = self.table.titles
        first, last = titles.index("scenario") + 1, len(titles) - 1
        results = {column.title for column in metric_columns()}
        middle = sorted(range(first, last), key=lambda index: titles[index] not in results)
        return (*range(first), last, *middle)


@dataclass(frozen=True)
class Plot:
    """A picture with its alternative text."""

    name: str
    alt: str
    png: bytes


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, and the scenarios that produced it."""

    scenarios: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Section:
    """One experiment.

    Attributes:
        run_id: MLflow run of its study.
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
    """Content of a report.

    Attributes:
        run_id: MLflow run that holds the report.
        conditions: what was measured, where, and with which versions, each with its label.
        takeaways: the few lines to read first.
        sections: one per experiment.
        summary: all runs, one table per task by title; empty if a section's table suffices.
        call: the timed call for the diagram of prefill and decoding, or None.
        remarks: notes on how it was measured, such as what a quick run leaves out.
        runs_at: URL prefix of run pages; empty for no links.
        start: command that starts MLflow there; empty if a server runs.
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


@dataclass(frozen=True)
class Call:
    """A timed call, by its medians.

    Attributes:
        prompt_tokens: without pads.
        new_tokens: per row.
    """

    scenario: str
    prompt_tokens: int
    new_tokens: int
    first_token_ms: float
    inter_token_ms: float
    weights_mib: float | None = None

    @property
    def steps(self) -> int:
        """Decoding steps: the prefill produces the first token."""
        return self.new_tokens - 1

    @property
    def decode_ms(self) -> float:
        """Duration of all decoding steps."""
        return self.steps * self.inter_token_ms

    @property
    def total_ms(self) -> float:
        """Duration of prefill and decoding."""
        return self.first_token_ms + self.decode_ms

    @property
    def prefill_tokens_per_sec(self) -> float:
        """Prompt tokens per second of the prefill."""
        return 1000 * self.prompt_tokens / self.first_token_ms

    @property
    def decode_tokens_per_sec(self) -> float:
        """New tokens of a row per second of decoding."""
        return 1000 / self.inter_token_ms


@dataclass(frozen=True)
class Timeline:
    """A call on an axis of `WIDTH` units, to scale.

    Attributes:
        prefill: width of the prefill.
        step: width of one decoding step.
        steps: left end and width of each decoding step, or of one block for all.
        cells: upper left corners of at most 32 squares for the prompt's tokens.
    """

    call: Call
    prefill: float
    step: float
    steps: tuple[tuple[float, float], ...]
    cells: tuple[tuple[int, int], ...]


def render_report(report: Report) -> str:
    """Render a report as one HTML file."""
    drawn = timeline(report.call) if report.call else None
    return page_template().render(report=report, drawn=drawn, glossary=GLOSSARY)


@cache
def page_template() -> Template:
    """Return the compiled page template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Always escape: texts come from models and prompts.
    templates = Environment(
        loader=PackageLoader("llmtrack.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: neutralize(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
    return templates.get_template("report.html.j2")


def timeline(call: Call) -> Timeline:
    """Lay out a call to scale."""
    unit = WIDTH / call.total_ms
    prefill, step = call.first_token_ms * unit, call.inter_token_ms * unit
    if call.steps > MOST_STEPS:
        steps: tuple[tuple[float, float], ...] = ((prefill, call.decode_ms * unit),)
    else:
        steps = tuple((prefill + number * step, step) for number in range(call.steps))
    squares = min(call.prompt_tokens, 32)
    return Timeline(call, prefill, step, steps, tuple((14 * (i % 8), 14 * (i // 8)) for i in range(squares)))
