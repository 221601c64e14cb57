"""Small words that every sentence needs alike."""

from __future__ import annotations


def plural(count: int, one: str, several: str = "") -> str:
    """Return `1 run`, `2 runs`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
