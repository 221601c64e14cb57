"""Update the tables of docs/benchmarks.md from the JSON files in benchmarks/results: python -m benchmarks.page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results import RESULTS, Result, load, machine_id, sections

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_PART = re.compile(
    r"(<!-- made by `make bench`: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->\n)", re.DOTALL
)
MACHINE = "machine"


def stored_results(folder: Path = RESULTS) -> dict[str, list[Result]]:
    """Return the saved results, one of each machine, by name."""
    by_name: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*/*.json"), key=lambda path: (path.stem, path.parent.name)):
        by_name.setdefault(path.stem, []).append(load(path))
    return by_name


def with_results(page: str, results: Mapping[str, Sequence[Result]]) -> str:
    """Fill the marked parts of a page: `machine`, or the name of a result.

    Parts without a result stay as they are; an empty part says so.
    """

    def part(match: re.Match[str]) -> str:
        name = match["name"]
        if name == MACHINE and results:
            text = machines(results)
        elif name in results:
            text = sections(results[name])
        else:
            text = match["body"].rstrip("\n") or f"Not measured yet: `python -m benchmarks {name}`."
        return f"{match[1]}{text}\n{match['end']}"

    return _PART.sub(part, page)


def machines(results: Mapping[str, Sequence[Result]]) -> str:
    """Describe the machines and versions of the results in one table."""
    names_by_machine: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, of_name in results.items():
        for result in of_name:
            names_by_machine.setdefault(tuple(sorted(result.machine.items())), []).append(name)
    columns = [dict(facts) for facts in names_by_machine]
    lines = [f"| | {' | '.join(', '.join(names) for names in names_by_machine.values())} |"]
    lines.append(f"| --- |{' --- |' * len(columns)}")
    lines.append(f"| machine | {' | '.join(map(machine_id, columns))} |")
    for key in sorted({key for column in columns for key in column}):
        lines.append(f"| {key} | {' | '.join(column.get(key, '') for column in columns)} |")
    return "\n".join(lines)


def main() -> None:
    """Update the page."""
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), stored_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
