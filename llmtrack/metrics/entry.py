"""What is said of a metric, a param or a tag: all that is to be known to show and to compare it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["lower", "higher", "-"]
Need = Literal["work", "machine", "convention", "text", "tokens", "reference"]
Sureness = Literal["sampled", "exact", "once"]
Role = Literal["configuration", "work", "convention", "repeats", "found", "implied"]


@dataclass(frozen=True)
class Shown:
    """How a metric or a condition is shown in a table.

    Attributes:
        title: heading of its column.
        render: a value as text.
        place: columns stand in this order; those of no place come last, as they are declared.
        quiet: a metric is shown only where it is asked for, a condition only where runs differ in it.
        spread: whether half the 95 % interval is shown beside the value, as a share of it.
        told: whether the change from the baseline is told where no other metrics are asked for.
        change: what the metric is called there; empty: as in the heading.
        keep: how long a table that is too wide for the terminal keeps the column: the least leaves first.
    """

    title: str
    render: Callable[[Any], str] = str
    place: int = 1000
    quiet: bool = False
    spread: bool = False
    told: bool = False
    change: str = ""
    keep: int = 0


@dataclass(frozen=True)
class Metric:
    """One number of a run, and all that is to be known to show and to compare it.

    Attributes:
        name: key of the metric.
        unit: unit in words, or `-` for a ratio.
        better: which direction is better, or `-` where neither is.
        meaning: what it tells.
        formula: how it is computed.
        sampled: whether it is taken once per repeat, so that it has a spread.
        needs: what must be the same on both sides to compare it: the `work`, the `machine`, or of a figure of a text the
            `convention` by which it is scored, that and the scored `text`, or these and its `tokens`, and of one against
            another model that `reference`.
        timed: whether it is computed from a time, so that one value has a noise which is not known; a unit of time tells
            so by itself.
        tolerance: relative change up to which two values count as equal, where one value tells. Sums in another order, on
            another machine or batch size, move a loss by less than a thousandth; the peak of a process depends on what
            its allocator keeps.
        headline: whether it is compared unless other metrics are named.
        shown: how tables show it; None: only where it is asked for.
    """

    name: str
    unit: str
    better: Better
    meaning: str
    formula: str
    sampled: bool = False
    needs: tuple[Need, ...] = ("work", "machine")
    timed: bool = False
    tolerance: float = 0.001
    headline: bool = False
    shown: Shown | None = None

    @property
    def of_text(self) -> bool:
        """Whether it depends on a text and how that is scored."""
        return not {"convention", "text", "tokens"}.isdisjoint(self.needs)

    @property
    def rate(self) -> bool:
        """Whether it is work per time, of which only the times may be averaged."""
        return self.unit.endswith("/s")

    @property
    def sureness(self) -> Sureness:
        """`sampled` (one value per repeat), `exact` (would be the same again) or `once` (noise is not known)."""
        if self.sampled:
            return "sampled"
        return "once" if self.timed or self.rate or self.unit in ("s", "ms") else "exact"


@dataclass(frozen=True)
class Param:
    """One condition of a run.

    Attributes:
        name: key of the param.
        kind: Python type of its values when read back.
        meaning: what it says.
        shown: how tables show it where runs differ in it, and above them where they do not; None: only where it is
            asked for.
        role: what two runs are that differ in it: of another `configuration` (what is not known is one, too), of other
            `work`, of another `convention` by which a text is scored; or of the same one, since it tells only how often
            it `repeats`, what was `found` or named on the way, or what others `implied` already, so that nobody asks
            what it changes.
        choice: how a takeaway writes what a user chose, with `{}` for the value; empty: its name and the value; None: nobody
            chose it, it follows from the model or is part of how quality is judged.
    """

    name: str
    kind: type
    meaning: str
    shown: Shown | None = None
    role: Role = "configuration"
    choice: str | None = ""


@dataclass(frozen=True)
class Tag:
    """One piece of identity or provenance of a run.

    Attributes:
        name: key of the tag.
        meaning: what it says.
    """

    name: str
    meaning: str


def decimals(places: int) -> Callable[[Any], str]:
    """Return what writes a number with so many decimals."""
    return lambda value: f"{value:,.{places}f}"


def percent(places: int) -> Callable[[Any], str]:
    """Return what writes a share in percent with so many decimals."""
    return lambda value: f"{value:.{places}%}"
