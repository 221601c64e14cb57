"""Where the time of one call goes: prefill and decoding laid out to scale."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 960.0
# More steps than this are drawn as one block: a line for each would be a grey area.
MOST_STEPS = 120


@dataclass(frozen=True)
class Call:
    """One timed call, by its medians.

    Attributes:
        scenario: its name.
        prompt_tokens: real tokens of the prompt.
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
        """Decoding steps: the first token comes out of the prefill."""
        return self.new_tokens - 1

    @property
    def decode_ms(self) -> float:
        """Time of all decoding steps."""
        return self.steps * self.inter_token_ms

    @property
    def total_ms(self) -> float:
        """Time of prefill and decoding."""
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
        call: the call.
        prefill: width of the prefill.
        step: width of one decoding step.
        steps: left end and width of each decoding step, or of one block of them all.
        cells: squares that stand for the prompt's tokens, as left and upper corner; at most 32.
    """

    call: Call
    prefill: float
    step: float
    steps: tuple[tuple[float, float], ...]
    cells: tuple[tuple[int, int], ...]


def timeline(call: Call) -> Timeline:
    """Lay a call out to scale."""
    unit = WIDTH / call.total_ms
    prefill, step = call.first_token_ms * unit, call.inter_token_ms * unit
    if call.steps > MOST_STEPS:
        steps: tuple[tuple[float, float], ...] = ((prefill, call.decode_ms * unit),)
    else:
        steps = tuple((prefill + number * step, step) for number in range(call.steps))
    shown = min(call.prompt_tokens, 32)
    return Timeline(call, prefill, step, steps, tuple((14 * (i % 8), 14 * (i // 8)) for i in range(shown)))
