"""Results of a benchmark, as JSON and as a table: rounds in turn, medians, intervals, ratios, and goals met or missed.

A benchmark is a module with `main = benchmark(title)(measure)`, where `measure(small)` returns its `Findings`:

    python -m benchmarks.plain_loop                   # prints the table
    python -m benchmarks.plain_loop --small           # a trial of seconds, whose figures mean nothing
    python -m benchmarks.plain_loop --json FILE       # also writes the results there
    python -m benchmarks.plain_loop --keep FOLDER     # stores them for this machine, for `benchmarks.page`
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click

from llmtrack.measure.statistics import summarize
from llmtrack.spec.outcome import Summary
from llmtrack.spec.serialization import digest, from_json, serializable, to_json
from llmtrack.tracking.environment import environment
from llmtrack.worker.machine import describe

RESULTS = Path(__file__).with_name("results")
"""JSON files behind docs/benchmarks.md: a folder for each machine."""

HARDWARE = ("cpu", "cpu_cores", "cpu_threads", "cpu_instruction_sets", "gpu")
"""Facts that identify a machine; versions and memory do not."""

SETTLE_S = 0.3
"""Seconds between two multi-threaded arms in this process: threads of a runtime keep spinning after a call, and take a core
from the next arm (ONNX Runtime's for some 60 ms of CPU time)."""

Samples = dict[str, dict[str, list[float]]]
"""Samples by arm and figure, one per round."""


@dataclass(frozen=True)
class Goal:
    """Bounds of a ratio, or of our own figure if there is no peer.

    Attributes:
        least: minimum of the median.
        most: maximum of the median.
        width: maximum width of the interval, as a share of the median.
    """

    least: float = -math.inf
    most: float = math.inf
    width: float = math.inf

    def verdict(self, figure: Summary) -> str:
        """Return `met` or `missed`; `within doubt` if a part of the interval contradicts it."""
        met = self.least <= figure.median <= self.most
        if met and figure.ci_high - figure.ci_low > self.width * abs(figure.median):
            return "missed: the interval is too wide"
        if met:
            doubt = figure.ci_low < self.least or figure.ci_high > self.most
        else:
            doubt = figure.ci_high >= self.least and figure.ci_low <= self.most
        return ("met" if met else "missed") + (" within doubt" if doubt else "")

    def __str__(self) -> str:
        bounds = [f"{word} {bound:g}" for word, bound in (("≥", self.least), ("≤", self.most)) if math.isfinite(bound)]
        return ", ".join([*bounds, *([f"interval ≤ {self.width:.0%}"] if math.isfinite(self.width) else [])])


@serializable("theirs", "ratio", "goal", "verdict", "why")
@dataclass(frozen=True)
class Row:
    """One figure, side by side.

    Attributes:
        figure: its name.
        unit: empty for a plain number.
        where: the conditions: tokens, threads, precision.
        peer: the program compared with; empty if none.
        ratio: ours over theirs, of each round.
        goal: bounds of the ratio, or else of our own figure, in words.
        verdict: whether they hold.
        why: the reason, if they do not.
    """

    figure: str
    unit: str
    where: str
    peer: str
    ours: Summary
    theirs: Summary | None = None
    ratio: Summary | None = None
    goal: str = ""
    verdict: str = ""
    why: str = ""


def row(
    figure: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float] = (),
    *,
    where: str = "",
    peer: str = "",
    goal: Goal | None = None,
    why: str = "",
) -> Row:
    """Build a row from samples: ours and, taken in the same rounds, theirs; see `Row`."""
    ratio = summarize([own / other for own, other in zip(ours, theirs, strict=True)]) if theirs else None
    own = summarize(ours)
    verdict = goal.verdict(ratio or own) if goal else ""
    return Row(
        figure,
        unit,
        where,
        peer,
        own,
        summarize(theirs) if theirs else None,
        ratio,
        str(goal) if goal else "",
        verdict,
        why if "missed" in verdict else "",
    )


def estimate(
    figure: str,
    unit: str,
    value: float,
    interval: tuple[float, float] | None = None,
    *,
    where: str = "",
    goal: Goal | None = None,
) -> Row:
    """Build a row from one figure of ours with a known 95 % interval; see `Row`."""
    low, high = interval or (value, value)
    own = Summary(2 if interval else 1, value, low, high, value)
    return Row(
        figure,
        unit,
        where,
        "",
        own,
        goal=str(goal) if goal else "",
        verdict=goal.verdict(own) if goal else "",
    )


@dataclass(frozen=True)
class Findings:
    """The findings of a benchmark.

    Attributes:
        rows: of its table.
        left_out: what could not be measured, and why.
        notes: further remarks, a sentence each.
    """

    rows: tuple[Row, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@serializable()
@dataclass(frozen=True)
class Result:
    """The results, and everything needed to reproduce them.

    Attributes:
        title: what is compared.
        small: whether it is a trial of seconds without significance.
        begun: start time, in UTC.
        load: the system's load at the start: processes that wanted a CPU.
        machine: processor, memory, versions.
    """

    title: str
    command: str
    small: bool
    begun: str
    wall_s: float
    load: float
    machine: Mapping[str, str] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)


def rounds(
    arms: Mapping[str, Callable[[], Mapping[str, float]]],
    count: int,
    enough: Callable[[Samples], bool] = lambda samples: False,
    seconds: float = math.inf,
    settle: float = 0.0,
) -> Samples:
    """Run all arms in each round, in rotating order, so that other load affects all equally.

    Args:
        arms: each returns its figures of one call, by name.
        count: maximum number of rounds.
        enough: called after each round; whether the samples suffice.
        seconds: no round begins that would end later, if it took as long as the longest so far.
        settle: seconds to wait before each arm, until the threads of the previous one are idle.
    """
    names, samples = list(arms), {name: dict[str, list[float]]() for name in arms}
    begin, longest = time.monotonic(), 0.0
    for number in range(count):
        start = time.monotonic()
        if start - begin + longest > seconds:
            break
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            time.sleep(settle)
            for figure, value in arms[name]().items():
                samples[name].setdefault(figure, []).append(value)
        longest = max(longest, time.monotonic() - start)
        if enough(samples):
            break
    return samples


def narrow(samples: Samples, ours: str, theirs: str, width: float, least: int) -> bool:
    """Return whether at least so many rounds were made, and the intervals of all ratios are narrow enough."""
    for figure, own in samples[ours].items():
        ratio = summarize([value / other for value, other in zip(own, samples[theirs][figure], strict=True)])
        if ratio.n < least or ratio.ci_high - ratio.ci_low > width:
            return False
    return True


def machine_title(facts: Mapping[str, str]) -> str:
    """Describe a machine: its processor, cores and GPU."""
    parts = [facts.get("cpu", "unknown CPU"), f"{facts.get('cpu_cores', '?')} cores", facts.get("gpu", "")]
    return ", ".join(filter(None, parts))


def machine_id(facts: Mapping[str, str]) -> str:
    """Return a folder name for a machine: its title, and a digest that distinguishes equal titles."""
    words = re.findall(r"[a-z0-9]+", machine_title(facts).lower())
    return "-".join([*words, digest([facts.get(key, "") for key in HARDWARE])[:4]])


def result_path(folder: Path, name: str, facts: Mapping[str, str]) -> Path:
    """Return the path of a machine's result, which replaces only the previous one of the same machine."""
    return folder / machine_id(facts) / f"{name}.json"


def load(path: Path) -> Result:
    """Read a result.

    Raises:
        ValueError: invalid.
    """
    result: Result = from_json(json.loads(path.read_text(encoding="utf-8")), Result)
    return result


def table(rows: Sequence[Row]) -> str:
    """Format rows as a Markdown table."""
    lines = [
        "| figure | under | llmtrack | peer | ratio | goal | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for entry in rows:
        peer = f"{entry.peer}: {_text(entry.theirs, entry.unit)}" if entry.theirs else entry.peer
        verdict = entry.verdict + (f": {entry.why}" if entry.why else "")
        cells = (
            entry.figure,
            entry.where,
            _text(entry.ours, entry.unit),
            peer,
            _text(entry.ratio),
            entry.goal,
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def benchmark(
    title: str, *options: Callable[[click.Command], click.Command]
) -> Callable[[Callable[..., Findings]], click.Command]:
    """Turn a measuring function, which receives `small`, into a command that prints its table.

    Args:
        title: what is compared, in words.
        options: further click options, passed to the function by name; a file is saved under its name only.
    """

    def wrap(measure: Callable[..., Findings]) -> click.Command:
        module = getattr(measure, "__module__", "")
        name = Path(str(measure.__code__.co_filename)).stem if module == "__main__" else module.rpartition(".")[2]

        @click.command(help=title)
        @click.option("--small", is_flag=True, help="A trial of seconds, whose figures mean nothing.")
        @click.option(
            "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="File to write the results to."
        )
        @click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Folder of results by machine.")
        def main(small: bool, file: Path | None, keep: Path | None, **more: str | None) -> None:
            logging.basicConfig(level=logging.WARNING, format="%(message)s")
            command = f"python -m benchmarks.{name}" + (" --small" if small else "")
            command += "".join(f" --{name} {Path(value).name}" for name, value in more.items() if value)
            begun, load_1 = datetime.now(timezone.utc), os.getloadavg()[0]
            start = time.perf_counter()
            findings = measure(small, **more)
            wall_s = time.perf_counter() - start
            result = Result(
                title,
                command,
                small,
                f"{begun:%Y-%m-%d %H:%M}",
                round(wall_s, 1),
                round(load_1, 2),
                machine(),
                findings,
            )
            stored = result_path(keep, name, result.machine) if keep else None
            for path in filter(None, (file, stored)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(to_json(result), indent=1) + "\n", encoding="utf-8")
            click.echo(section(result))

        for option in options:
            main = option(main)
        return main

    return wrap


def section(result: Result) -> str:
    """Format a result as Markdown: its conditions, its table, and what was not measured."""
    return sections([result])


def sections(results: Sequence[Result]) -> str:
    """Format the results of one benchmark, one of each machine, as Markdown; several machines get a column each."""
    titles = [machine_title(result.machine) for result in results]
    # The digest distinguishes two machines with the same title.
    titles = [
        title if titles.count(title) == 1 else f"{title} ({machine_id(result.machine)[-4:]})"
        for title, result in zip(titles, results, strict=True)
    ]
    parts = ["\n".join(f"{'- ' * (len(results) > 1)}{_origin(*pair)}" for pair in zip(titles, results, strict=True))]
    if any(result.small for result in results):
        parts.append("A trial: these figures say nothing.")
    if len(results) == 1 and results[0].findings.rows:
        parts.append(table(results[0].findings.rows))
    elif len(results) > 1:
        parts.append(columns({title: result.findings.rows for title, result in zip(titles, results, strict=True)}))
    remarks: dict[str, list[str]] = {}
    for title, result in zip(titles, results, strict=True):
        for remark in (*result.findings.notes, *(f"Left out: {reason}" for reason in result.findings.left_out)):
            remarks.setdefault(remark, []).append(title)
    lines = [
        f"- {remark}" + (f" ({'; '.join(machines)})" if len(machines) < len(results) else "")
        for remark, machines in remarks.items()
    ]
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _origin(title: str, result: Result) -> str:
    return (
        f"`{result.command}` on {title}, {result.begun} UTC, {result.wall_s:.0f} s, load {result.load:g} when it began."
    )


def columns(rows_by_title: Mapping[str, Sequence[Row]]) -> str:
    """Format the rows of several machines as a Markdown table with a column for each machine.

    Args:
        rows_by_title: of each machine.
    """
    merged: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for title, rows in rows_by_title.items():
        for entry in rows:
            key = (entry.figure, entry.where, entry.peer, entry.goal)
            merged.setdefault(key, {})[title] = _summary_cell(entry)
    lines = [
        f"| figure | under | peer | goal | {' | '.join(rows_by_title)} |",
        f"| --- |{' --- |' * (3 + len(rows_by_title))}",
    ]
    lines += [
        f"| {' | '.join(key)} | {' | '.join(cells.get(title, '') for title in rows_by_title)} |"
        for key, cells in merged.items()
    ]
    return "\n".join(lines)


def _summary_cell(row: Row) -> str:
    """Format a row in one cell: our figure, the peer's, the ratio, and whether the goal is met."""
    theirs = f" against {_text(row.theirs, row.unit)}, ratio {_text(row.ratio)}" if row.theirs else ""
    return _text(row.ours, row.unit) + theirs + (f": {row.verdict}" if row.verdict else "")


def machine() -> dict[str, str]:
    """Return the facts that affect speed: processor, memory, versions, commit."""
    names = (
        "cpu",
        "cpu_cores",
        "cpu_threads",
        "cpu_instruction_sets",
        "memory_gib",
        "gpu",
        "os",
        "python_version",
        "llmtrack_version",
        "llmtrack_git_commit",
        "mlflow_version",
        "threads",
    )
    facts = environment(describe())
    return {key: value for key, value in facts.items() if key in names or key.startswith("version.")}


def _text(figure: Summary | None, unit: str = "") -> str:
    """Format a median and its interval."""
    if figure is None:
        return ""
    digits = max(0, 3 - math.floor(math.log10(abs(figure.median)))) if figure.median else 0
    ends = f" [{figure.ci_low:,.{digits}f}, {figure.ci_high:,.{digits}f}]" if figure.n > 1 else ""
    return f"{figure.median:,.{digits}f}{ends}{f' {unit}' if unit else ''}"
