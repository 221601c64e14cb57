"""Timestamps of decode steps: by the host's clock on a CPU, by events on a GPU.

A GPU receives the next step while computing the last one. Waiting after each step would slow it down, so an event is
queued after each step, and all are read after the call has been timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from llmtrack.devices import synchronize


class Stamps:
    """Timestamps of one call, from its start.

    Args:
        device: idle at the start.
        on_step: called for each step: on a CPU once its tokens exist, on a GPU once they are queued.
    """

    def __init__(self, device: torch.device, on_step: Callable[[], None]) -> None:
        self._begin = self._end = time.perf_counter()
        self._device, self._on_step = device, on_step
        self._events: list[torch.cuda.Event] = []

    def step(self) -> None:
        """Stamp a step, whose tokens are made by the work submitted so far.

        A GPU without tested events is synchronized, which `generate` does in each step anyway.
        """
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
        else:
            synchronize(self._device)
        self._on_step()

    def wait(self) -> None:
        """Wait for the tokens of the last step; the last wait anchors the timestamps."""
        if self._events:
            self._events[-1].synchronize()
            self._end = time.perf_counter()

    @property
    def seconds(self) -> Callable[[], tuple[float, ...]] | None:
        """A function that returns the seconds from the start to each step; None if the host reported each step in time.

        The end is by the host's clock, like the whole call; the GPU's events give how long before it each step
        finished.
        """
        return self._read if self._device.type == "cuda" else None

    def _read(self) -> tuple[float, ...]:
        total, last = self._end - self._begin, self._events[-1]
        return tuple(total - event.elapsed_time(last) / 1000 for event in self._events)
