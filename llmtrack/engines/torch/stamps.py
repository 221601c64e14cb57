"""When the tokens of each decode step were there: told by the host where it computes them, by events on a GPU.

A GPU is given the next step while it still computes the last one. To ask it after each step would hold it up, so an
event is left in its queue behind each step, and all are read once the call is over and has been timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from llmtrack.devices import synchronize


class Stamps:
    """The stamps of one call, from its beginning on.

    Args:
        device: what computes; idle when the call begins.
        on_step: is told of each step: on a CPU once its tokens are there, on a GPU once they are asked for.
    """

    def __init__(self, device: torch.device, on_step: Callable[[], None]) -> None:
        self._begin = self._end = time.perf_counter()
        self._device, self._on_step = device, on_step
        self._events: list[torch.cuda.Event] = []

    def step(self) -> None:
        """Stamp a step: what has been given to the device so far makes its tokens.

        A GPU on which events were not tried is waited for, which `generate` does in each step anyway.
        """
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
        else:
            synchronize(self._device)
        self._on_step()

    def wait(self) -> None:
        """Wait until the tokens of the last step are there; the last time, it is what the stamps hang on."""
        if self._events:
            self._events[-1].synchronize()
            self._end = time.perf_counter()

    @property
    def seconds(self) -> Callable[[], tuple[float, ...]] | None:
        """What returns the seconds from the beginning to each step; None where the host told of each when it was there.

        The end is by the host's clock, as all of the call is; how long before it each step was, the GPU tells.
        """
        return self._read if self._device.type == "cuda" else None

    def _read(self) -> tuple[float, ...]:
        whole, last = self._end - self._begin, self._events[-1]
        return tuple(whole - each.elapsed_time(last) / 1000 for each in self._events)
