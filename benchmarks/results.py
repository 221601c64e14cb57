"""Results of a benchmark, as JSON and as a table: rounds in turn, medians, intervals, ratios, and goals met or missed.

A benchmark is a module with `main = benchmark(title)(measure)`, where `measure(small)` returns what it `Found`:

    python -m benchmarks.plain_loop                   # prints the table
    python -m benchmarks.plain_loop --small           # of seconds: whether it works, not what is true
    python -m benchmarks.plain_loop --json FILE       # and writes it there
    python -m benchmarks.plain_loop --keep FOLDER     # and keeps it as this machine's, for `python -m benchmarks.page`
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
"""Seconds between two multi-threaded arms in this process: threads of a runtime and of PyTorch keep spinning after a call and
take a core from the next arm: ONNX Runtime's some 60 ms of CPU time."""

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

    def verdict(self, found: Summary) -> str:
        """Return `met` or `missed`; `within doubt` if a part of the interval contradicts it."""
        met = self.least <= found.median <= self.most
        if met and found.ci_high - found.ci_low > self.width * abs(found.median):
            return "missed: the interval is too wide"
        if met:
            doubt = found.ci_low < self.least or found.ci_high > self.most
        else:
            doubt = found.ci_high >= self.least and found.ci_low <= self.most
        return ("met" if met else "missed") + (" within doubt" if doubt else "")

    def __str__(self) -> str:
        bounds = [f"{word} {bound:g}" for word, bound in (("≥", self.least), ("≤", self.most)) if math.isfinite(bound)]
        return ", ".join([*bounds, *([f"interval ≤ {self.width:.0%}"] if math.isfinite(self.width) else [])])


@serializable("theirs", "ratio", "goal", "verdict", "why")
@dataclass(frozen=True)
class Row:
    """One figure, side by side.

    Attributes:
        what: the figure.
        unit: its unit; empty for a plain number.
        where: the conditions: tokens, threads, precision.
        peer: the program compared with; empty if none.
        ours: of llmtrack.
        theirs: of the peer.
        ratio: ours over theirs, of each round.
        goal: bounds of the ratio, or else of our own figure, in words.
        verdict: whether they hold.
        why: the reason, if they do not.
    """

    what: str
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
    what: str,
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
        what,
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
    what: str,
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
        what,
        unit,
        where,
        "",
        own,
        goal=str(goal) if goal else "",
        verdict=goal.verdict(own) if goal else "",
    )


@dataclass(frozen=True)
class Found:
    """The results of a benchmark.

    Attributes:
        rows: its table.
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
        title: what is compared, in words.
        command: the command that made it.
        small: whether it is a trial of seconds without significance.
        begun: start time, in UTC.
        wall_s: duration in seconds.
        load: the system's load at the start: processes that wanted a CPU.
        machine: processor, memory, versions.
        found: the results.
    """

    title: str
    command: str
    small: bool
    begun: str
    wall_s: float
    load: float
    machine: Mapping[str, str] = field(default_factory=dict)
    found: Found = field(default_factory=Found)


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
    begun, longest = time.monotonic(), 0.0
    for number in range(count):
        start = time.monotonic()
        if start - begun + longest > seconds:
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


def machine_title(facts: Mapping[str, str]) -> str:
    """Describe a machine: its processor, cores and GPU."""
    parts = [facts.get("cpu", "unknown CPU"), f"{facts.get('cpu_cores', '?')} cores", facts.get("gpu", "")]
    return ", ".join(filter(None, parts))


def machine_id(facts: Mapping[str, str]) -> str:
    """Return a folder name for a machine: its title, and a digest that distinguishes equal titles."""
    words = re.findall(r"[a-z0-9]+", machine_title(facts).lower())
    return "-".join([*words, digest([facts.get(key, "") for key in HARDWARE])[:4]])


def kept_path(folder: Path, name: str, facts: Mapping[str, str]) -> Path:
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
    for each in rows:
        peer = f"{each.peer}: {_text(each.theirs, each.unit)}" if each.theirs else each.peer
        verdict = each.verdict + (f": {each.why}" if each.why else "")
        cells = (
            each.what,
            each.where,
            _text(each.ours, each.unit),
            peer,
            _text(each.ratio),
            each.goal,
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def benchmark(
    title: str, *options: Callable[[click.Command], click.Command]
) -> Callable[[Callable[..., Found]], click.Command]:
    """Turn a measuring function, which receives `small`, into a command that prints its table.

    Args:
        title: what is compared, in words.
        options: further click options, passed to the function by name; a file is saved under its name only.
    """

    def wrap(measure: Callable[..., Found]) -> click.Command:
        module = getattr(measure, "__module__", "")
        name = Path(str(measure.__code__.co_filename)).stem if module == "__main__" else module.rpartition(".")[2]

        @click.command(help=title)
        @click.option("--small", is_flag=True, help="Of seconds: whether it works, not what is true.")
        @click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="File to write it to.")
        @click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Folder of results by machine.")
        def main(small: bool, file: Path | None, keep: Path | None, **more: str | None) -> None:
            logging.basicConfig(level=logging.WARNING, format="%(message)s")
            command = f"python -m benchmarks.{name}" + (" --small" if small else "")
            command += "".join(f" --{name} {Path(value).name}" for name, value in more.items() if value)
            begun, load_1 = datetime.now(timezone.utc), os.getloadavg()[0]
            start = time.perf_counter()
            found = measure(small, **more)
            wall_s = time.perf_counter() - start
            result = Result(
                title,
                command,
                small,
                f"{begun:%Y-%m-%d %H:%M}",
                round(wall_s, 1),
                round(load_1, 2),
                machine(),
                found,
            )
            own = kept_path(keep, name, result.machine) if keep else None
            for path in filter(None, (file, own)):
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
    parts = ["\n".join(f"{'- ' * (len(results) > 1)}{_taken(*pair)}" for pair in zip(titles, results, strict=True))]
    if any(result.small for result in results):
        parts.append("A trial: these figures say nothing.")
    if len(results) == 1 and results[0].found.rows:
        parts.append(table(results[0].found.rows))
    elif len(results) > 1:
        parts.append(columns({title: each.found.rows for title, each in zip(titles, results, strict=True)}))
    said: dict[str, list[str]] = {}
    for title, found in zip(titles, (result.found for result in results), strict=True):
        for each in (*found.notes, *(f"Left out: {reason}" for reason in found.left_out)):
            said.setdefault(each, []).append(title)
    lines = [f"- {each}" + (f" ({'; '.join(of)})" if len(of) < len(results) else "") for each, of in said.items()]
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _taken(title: str, result: Result) -> str:
    return (
        f"`{result.command}` on {title}, {result.begun} UTC, {result.wall_s:.0f} s, load {result.load:g} when it began."
    )


def columns(of: Mapping[str, Sequence[Row]]) -> str:
    """Format the rows of several machines as a Markdown table with a column for each machine.

    Args:
        of: each machine's rows, by its title.
    """
    merged: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for title, rows in of.items():
        for each in rows:
            key = (each.what, each.where, each.peer, each.goal)
            merged.setdefault(key, {})[title] = _in_short(each)
    lines = [f"| figure | under | peer | goal | {' | '.join(of)} |", f"| --- |{' --- |' * (3 + len(of))}"]
    lines += [
        f"| {' | '.join(key)} | {' | '.join(cells.get(title, '') for title in of)} |" for key, cells in merged.items()
    ]
    return "\n".join(lines)


def _in_short(found: Row) -> str:
    """Format a row in one cell: our figure, the peer's, the ratio, and whether the goal is met."""
    theirs = f" against {_text(found.theirs, found.unit)}, ratio {_text(found.ratio)}" if found.theirs else ""
    return _text(found.ours, found.unit) + theirs + (f": {found.verdict}" if found.verdict else "")


def machine() -> dict[str, str]:
    """Return the facts that affect speed: processor, memory, versions, commit."""
    wanted = (
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
    return {key: value for key, value in facts.items() if key in wanted or key.startswith("version.")}


def _text(found: Summary | None, unit: str = "") -> str:
    """Format a median and its interval."""
    if found is None:
        return ""
    digits = max(0, 3 - math.floor(math.log10(abs(found.median)))) if found.median else 0
    ends = f" [{found.ci_low:,.{digits}f}, {found.ci_high:,.{digits}f}]" if found.n > 1 else ""
    return f"{found.median:,.{digits}f}{ends}{f' {unit}' if unit else ''}"
