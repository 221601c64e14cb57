"""Group warnings of several runs: those that differ only in numbers become one line with ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmtrack.host.words import some_of

# A standalone number, not one within a name (prompt_16, smollm2-135m, v1.2).
_NUMBER = re.compile(r"(?<![\w.:/#-])\d[\d,]*(?:\.\d+)?(?![\w.:/-]*[A-Za-z_/])")


def warning_kind(warning: str) -> str:
    """Return a warning with its numbers masked."""
    return _NUMBER.sub("#", warning)


def grouped(warned: Iterable[tuple[str, str]], runs: int) -> list[str]:
    """Return a line per kind of warning: `all 4 runs: the machine was busy: other programs took 87 to 92% ...`.

    Args:
        warned: run names, each with one warning, in order.
        runs: total number of runs, with and without warnings.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, line in dict.fromkeys(warned):
        kinds.setdefault(warning_kind(line), []).append((name, line))
    return [
        f"{_who([name for name, _ in found], runs)}: {_ranged([line for _, line in found])}" for found in kinds.values()
    ]


def _who(names: list[str], runs: int) -> str:
    several = list(dict.fromkeys(names))
    return f"all {runs} runs" if len(several) == runs > 1 else some_of(several)


def _ranged(lines: list[str]) -> str:
    """Merge lines of one kind, replacing each number by its range."""
    first = lines[0]
    ranges = [
        sorted(set(each), key=lambda text: float(text.replace(",", "")))
        for each in zip(*map(_NUMBER.findall, lines), strict=True)
    ]
    numbers = iter(each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in ranges)
    return _NUMBER.sub(lambda found: next(numbers), first)
