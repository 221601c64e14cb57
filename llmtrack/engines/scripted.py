"""An engine that follows a script on a fake clock, to test timing against known results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING

from llmtrack.engine import EngineInfo, Generated, GenerateRequest, SpecialTokens, Tokenized
from llmtrack.host.formatting import MIB

if TYPE_CHECKING:
    import torch


class FakeClock:
    """A clock that only advances explicitly."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


@dataclass(frozen=True)
class Script:
    """Timing of one generate call.

    Attributes:
        prefill_s: seconds from the call to its first token.
        step_s: seconds between tokens.
        trailing_s: seconds of device work after the last token; only `synchronize` waits for it.
        new_tokens: tokens per row if rows end early; the others get pads until the longest row is done.
        error: raised instead of generating.
    """

    prefill_s: float
    step_s: float
    trailing_s: float = 0.0
    new_tokens: tuple[int, ...] | None = None
    error: Exception | None = None


class ScriptedEngine:
    """Consumes scripted time: one script per call, repeating the last.

    A token is one character; token 0 is the BOS, which is not added automatically. `calls` counts `generate` calls.

    Args:
        scripts: one per call.
        eos_id: end-of-sequence token, if any; the generated ids are 65, 66, 67 ...
        nll: nats of each token of a text, positive; NaN for a model with NaN logits.
        slowness: factor by which everything that starts at a time is slower than scripted, as on a loaded machine.
    """

    def __init__(
        self,
        clock: FakeClock,
        *scripts: Script,
        context_length: int | None = None,
        eos_id: int | None = None,
        nll: float = 1.0,
        slowness: Callable[[float], float] = lambda now: 1.0,
    ) -> None:
        self.clock = clock
        self.calls = 0
        self._eos_id = eos_id
        self._nll = nll
        self._slowness = slowness
        self._scripts = chain(scripts, repeat(scripts[-1]))
        self._device_busy_s = 0.0
        self._info = EngineInfo(
            model_id="scripted",
            device="cpu",
            dtype_label="float32",
            model_size_bytes=1000,
            step_weight_bytes=1000,
            kv_bytes_per_token=10,
            context_length=context_length,
            vocab_size=128,
            special_tokens=SpecialTokens({0: "<s>"}, bos_id=0),
        )

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return self._info

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return one id per character."""
        return [min(ord(character), 127) for character in text]

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """Return one id per character, covering its bytes."""
        ids = self.encode(text, special_tokens)
        added = len(ids) - len(text)
        ends = [0] * (added + 1) + list(accumulate(len(character.encode()) for character in text))
        return Tokenized(ids, tuple(pairwise(ends)), added)

    def decode(self, ids: Sequence[int]) -> str:
        """Return one character per id, without the BOS."""
        return "".join(map(chr, filter(None, ids)))

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Advance the clock by the script, calling `on_step` for each step."""
        self.calls += 1
        script = next(self._scripts)
        if script.error is not None:
            raise script.error
        self.synchronize()  # a device works in order
        new_tokens = script.new_tokens or (request.max_new_tokens,) * len(request.prompt_ids)
        rows = tuple(self._row(count, request.ignore_eos) for count in new_tokens)
        slowness = self._slowness(self.clock())
        for step in range(max(map(len, rows))):
            self.clock.advance((script.step_s if step else script.prefill_s) * slowness)
            on_step()
        self._device_busy_s = script.trailing_s * slowness
        return Generated(rows)

    def _row(self, count: int, ignore_eos: bool) -> tuple[int, ...]:
        row = tuple(range(65, 65 + count))
        if self._eos_id not in row:
            return row
        end = row.index(self._eos_id)
        return (*row[:end], 64, *row[end + 1 :]) if ignore_eos else row[: end + 1]

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score every predicted token with the same nats."""
        from llmtrack.tensors.likelihood import predicted

        counts = predicted(attention_mask, scored).sum(dim=1)
        return counts.double() * self._nll, counts

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return logits that give the next token of the row its nats, and are uniform otherwise."""
        import torch

        likely = math.exp(-self._nll)
        size = self._info.vocab_size
        logits = torch.full((len(ids), size), math.log((1 - likely) / (size - 1)))
        logits[range(len(ids) - 1), list(ids[1:])] = -self._nll
        return logits

    def leave_device_busy(self, seconds: float) -> None:
        """Add device work that only `synchronize` waits for."""
        self._device_busy_s = seconds

    def synchronize(self) -> None:
        """Advance the clock by the remaining device work."""
        self.clock.advance(self._device_busy_s)
        self._device_busy_s = 0.0

    def reset_peak_memory(self) -> None:
        """Do nothing: the peak is constant."""

    def peak_memory_bytes(self) -> int | None:
        """Return 2 MiB."""
        return 2 * MIB

    def close(self) -> None:
        """Do nothing."""
