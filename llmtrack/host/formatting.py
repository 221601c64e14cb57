"""Format sizes, counts, durations and names in messages."""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 2**20, 2**30

_SOME = 3
"""Names listed in a sentence before they are counted."""


def plural(count: int, one: str, several: str = "") -> str:
    """Return `1 run`, `2 runs`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def clock_text(seconds: float) -> str:
    """Format seconds as `0:05`, `12:34` or `1:02:03`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def some_of(names: Sequence[str]) -> str:
    """Return `a, b, c` or, for many, `a, b and 18 others`."""
    if len(names) <= _SOME:
        return ", ".join(names)
    return f"{', '.join(names[: _SOME - 1])} and {len(names) - _SOME + 1} others"


def described(value: object) -> str:
    """Return a value's type with its article, such as `a list`; `None` for None."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def cut(text: str, most: int, mark: str = "…") -> str:
    """Truncate a text, ending it with a mark."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def significant(value: float, digits: int = 4) -> str:
    """Format to significant digits, and large figures as whole numbers instead of with an exponent: `12,345`, `0.01235`."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:,.{digits}g}"
