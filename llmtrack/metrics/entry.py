"""Row types of the tables of metrics, params and tags, and formatters of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from llmtrack.host.formatting import significant

Better = Literal["lower", "higher", "-"]
Need = Literal["work", "machine", "convention", "text", "tokens", "reference"]
Sureness = Literal["sampled", "exact", "once"]
Role = Literal["configuration", "work", "convention", "repeats", "named", "found", "implied"]

# Least number written without an exponent.
_PLAIN = 1e-4


@dataclass(frozen=True)
class Shown:
    """Display of a metric or condition in tables.

    Attributes:
        order: of the columns; entries without one come last, as declared.
        quiet: show a metric only on request, a condition only if runs differ in it.
        spread: show half of the 95 % interval beside the value, as a share of it.
        compared: compare it with the baseline by default.
        change: name in such a comparison; empty for the heading.
        priority: when a table is too wide, the lowest leaves first.
    """

    title: str
    render: Callable[[Any], str] = str
    order: int = 1000
    quiet: bool = False
    spread: bool = False
    compared: bool = False
    change: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Metric:
    """A number of a run.

    Attributes:
        unit: `-` for a ratio.
        sampled: whether it is measured once per repeat, so that it has a spread.
        needs: what must agree to compare two values: the `work`, the `machine`; for metrics of a text, the `convention`
            of scoring, also the scored `text`, or also its `tokens`; for a comparison with another model, the
            `reference`.
        timed: whether it depends on a time, so that a single value has unknown noise; implied by a unit of time.
        tolerance: relative difference up to which two noise-free values count as equal. Summation order on another
            machine or batch size changes a loss by less than a thousandth; a process's peak memory depends on what its
            allocator keeps.
        headline: whether it is compared by default.
        shown: display in tables; None for only on request.
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
        """Whether it depends on a text and its scoring."""
        return not {"convention", "text", "tokens"}.isdisjoint(self.needs)

    @property
    def has_interval(self) -> bool:
        """Whether MLflow has its 95 % interval as metrics, too."""
        return self.sampled and self.shown is not None

    @property
    def rate(self) -> bool:
        """Whether it is work per time, so that only the times may be averaged."""
        return self.unit.endswith("/s")

    @property
    def sureness(self) -> Sureness:
        """`sampled` (one value per repeat), `exact` (reproducible) or `once` (unknown noise)."""
        if self.sampled:
            return "sampled"
        return "once" if self.timed or self.rate or self.unit in ("s", "ms") else "exact"


@dataclass(frozen=True)
class Param:
    """A condition of a run.

    Attributes:
        kind: Python type of its values when read back.
        shown: display in tables if runs differ in it, above them if they agree; None for only on request.
        role: what a difference means: another `configuration` (the default for unknown params), other `work`, another
            scoring `convention`; or none of them, because it only records how often a call `repeats`, what is `named`
            (a setting that changes nothing measured, or whose effect other params tell), what was `found` in this run
            alone, or something `implied` by others.
        choice: phrase in takeaways for a user's choice, with `{}` for the value; empty for name and value; None if it
            is not a choice but follows from the model or belongs to how quality is judged.
    """

    name: str
    kind: type
    meaning: str
    shown: Shown | None = None
    role: Role = "configuration"
    choice: str | None = ""


@dataclass(frozen=True)
class Tag:
    """A tag with identity or provenance of a run.

    Attributes:
        packed: whether it is a part of `DETAILS_TAG` in MLflow, since no search needs it.
        while_running: whether a run loses it when it ends.
    """

    name: str
    meaning: str
    packed: bool = False
    while_running: bool = False


def decimals(places: int) -> Callable[[Any], str]:
    """Return a formatter with a fixed number of decimals, and two significant digits for smaller values."""
    least = 10 ** min(0, 1 - places)

    def render(value: Any) -> str:
        small = _PLAIN <= abs(value) < least
        return significant(value, 2) if small else f"{value:,.{places}f}"

    return render


def percent(places: int) -> Callable[[Any], str]:
    """Return a formatter for shares in percent."""
    return lambda value: f"{value:.{places}%}"
