"""Format comparisons uniformly: a ratio as `5.8x (4.4 to 7.4)`, a quality difference as `+0.52 % (0.3 to 0.8)`.

A test ensures that all other modules use these functions.
"""

from __future__ import annotations

from llmtrack.decide.significance import Ratio


def ratio_text(ratio: Ratio | float, interval: bool = True) -> str:
    """Format a ratio with its interval: `5.8x (4.4 to 7.4)`.

    Args:
        ratio: with an interval, or a plain number.
        interval: whether to show the interval.
    """
    if not isinstance(ratio, Ratio):
        return f"{ratio:,.{_decimals(ratio)}f}x"
    if not interval:
        return ratio_text(ratio.value)
    # Use as many decimals for all three as the smallest needs.
    digits = _decimals(min(ratio.value, ratio.low))
    value, low, high = (f"{each:,.{digits}f}" for each in (ratio.value, ratio.low, ratio.high))
    return f"{value}x ({low} to {high})"


def change_text(ratio: Ratio | float, interval: bool = True) -> str:
    """Format a ratio as a signed change with its interval: `+0.52 % (0.3 to 0.8)`; see `ratio_text`."""
    if not isinstance(ratio, Ratio):
        return share_text(ratio - 1)
    if not interval or ratio.low == ratio.high:
        return share_text(ratio.value - 1)
    low, high = (100 * (end - 1) for end in (ratio.low, ratio.high))
    digits = next((n for n in (1, 2) if f"{low:.{n}f}" != f"{high:.{n}f}"), 2)
    return f"{share_text(ratio.value - 1)} ({low:.{digits}f} to {high:.{digits}f})"


def share_text(share: float) -> str:
    """Format a signed share in percent: 0.0052 as `+0.52 %`."""
    percent = 100 * share
    return f"{percent:+,.0f} %" if abs(percent) >= 1000 else f"{percent:+.3g} %"


def _decimals(ratio: float) -> int:
    """Return the number of decimals for two significant digits."""
    for least, digits in ((100, 0), (2, 1), (0.1, 2), (0.01, 3)):
        if abs(ratio) >= least:
            return digits
    return 2 if ratio == 0 else 4
