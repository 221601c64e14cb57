"""When the tokens of each decode step were there: told by the host where it computes them, by events on a GPU.

A GPU is given the next step while it still computes the last one. To ask it after each step would hold it up, so an
event is left in its queue behind each step, and all are read once the last one has passed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class Stamps:
    """The stamps of one call, from its beginning on.

    Args:
        device: what computes; idle when the call begins.
        on_step: is told of each step: on a CPU once its tokens are there, on a GPU once they are asked for.
    """

    def __init__(self, device: torch.device, on_step: Callable[[], None]) -> None:
        self._device, self._on_step = device, on_step
        self._events: list[torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = []
            self._leave()

    def step(self) -> None:
        """Stamp a step: what has been given to the device so far makes its tokens."""
        if self._events is not None:
            self._leave()
        self._on_step()

    def wait(self) -> None:
        """Wait until the tokens of the last step are there."""
        if self._events:
            self._events[-1].synchronize()

    def seconds(self) -> tuple[float, ...] | None:
        """Wait, and return the seconds from the beginning to each step by the GPU's clock; None where the host tells."""
        if self._events is None:
            return None
        self.wait()
        first, *steps = self._events
        return tuple(first.elapsed_time(each) / 1000 for each in steps)

    def _leave(self) -> None:
        assert self._events is not None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
