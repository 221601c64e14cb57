"""Lay out prefill and decoding of one call to scale."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 960.0
# More steps than this are drawn as one block, because separate lines would merge.
MOST_STEPS = 120


@dataclass(frozen=True)
class Call:
    """A timed call, by its medians.

    Attributes:
        prompt_tokens: prompt tokens without pads.
        new_tokens: new tokens per row.
        first_token_ms: time to first token.
        inter_token_ms: gap between consecutive tokens.
        weights_mib: size of the weights, if known.
    """

    scenario: str
    prompt_tokens: int
    new_tokens: int
    first_token_ms: float
    inter_token_ms: float
    weights_mib: float | None = None

    @property
    def steps(self) -> int:
        """Decoding steps: the prefill produces the first token."""
        return self.new_tokens - 1

    @property
    def decode_ms(self) -> float:
        """Duration of all decoding steps."""
        return self.steps * self.inter_token_ms

    @property
    def total_ms(self) -> float:
        """Duration of prefill and decoding."""
        return self.first_token_ms + self.decode_ms

    @property
    def prefill_tokens_per_sec(self) -> float:
        """Prompt tokens per second of the prefill."""
        return 1000 * self.prompt_tokens / self.first_token_ms

    @property
    def decode_tokens_per_sec(self) -> float:
        """New tokens of a row per second of decoding."""
        return 1000 / self.inter_token_ms


@dataclass(frozen=True)
class Timeline:
    """A call on an axis of `WIDTH` units, to scale.

    Attributes:
        prefill: width of the prefill.
        step: width of one decoding step.
        steps: left end and width of each decoding step, or of one block for all.
        cells: upper left corners of at most 32 squares for the prompt's tokens.
    """

    call: Call
    prefill: float
    step: float
    steps: tuple[tuple[float, float], ...]
    cells: tuple[tuple[int, int], ...]


def timeline(call: Call) -> Timeline:
    """Lay out a call to scale."""
    unit = WIDTH / call.total_ms
    prefill, step = call.first_token_ms * unit, call.inter_token_ms * unit
    if call.steps > MOST_STEPS:
        steps: tuple[tuple[float, float], ...] = ((prefill, call.decode_ms * unit),)
    else:
        steps = tuple((prefill + number * step, step) for number in range(call.steps))
    shown = min(call.prompt_tokens, 32)
    return Timeline(call, prefill, step, steps, tuple((14 * (i % 8), 14 * (i // 8)) for i in range(shown)))
