"""Format sizes, counts, durations and names in messages."""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 2**20, 2**30

_SOME = 3
"""Names listed in a sentence before they are counted."""


def plural(count: int, singular: str, plural_form: str = "") -> str:
    """Format a count with its noun: `1 run`, `2 runs`."""
    return f"{count:,} {singular if count == 1 else plural_form or f'{singular}s'}"


def clock_text(seconds: float) -> str:
    """Format seconds as `0:05`, `12:34` or `1:02:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


def list_some(names: Sequence[str]) -> str:
    """Join names as `a, b, c` or, if there are many, `a, b and 18 others`."""
    if len(names) <= _SOME:
        return ", ".join(names)
    return f"{', '.join(names[: _SOME - 1])} and {len(names) - _SOME + 1} others"


def type_name(value: object) -> str:
    """Name a value's type with its article, such as `a list`; `None` for None."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def truncate(text: str, most: int, mark: str = "…") -> str:
    """Truncate a text, ending it with a mark."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def significant(value: float, digits: int = 4) -> str:
    """Format to significant digits, large figures as whole numbers without an exponent: `12,345`, `0.01235`."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:,.{digits}g}"
