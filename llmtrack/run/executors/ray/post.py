"""Letters from the tasks on a cluster to the driver, in the order in which each was sent."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

Letter = tuple[str, dict[str, Any]]


class Post:
    """Holds letters until the driver takes them; lives in an actor of Ray's near the driver.

    Streams of results would do without it, but they end for the driver as soon as it cancels a task, and what an
    interrupted worker still keeps and tells would be lost; nor does Ray Client have them.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._there = asyncio.Event()

    async def put(self, key: str, message: dict[str, Any]) -> None:
        """Take in a letter for whoever follows what the key names."""
        self._letters.append((key, message))
        self._there.set()

    async def take(self, seconds: float) -> list[Letter]:
        """Hand out all letters, once there is one; none if none came for so many seconds."""
        try:
            await asyncio.wait_for(self._there.wait(), seconds)
        except asyncio.TimeoutError:
            return []
        self._there.clear()
        letters, self._letters = self._letters, []
        return letters


class Boxes:
    """Sorts letters, as they are taken, into a box for each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}

    def open(self, key: str) -> queue.SimpleQueue[dict[str, Any]]:
        """Return a new box."""
        with self._lock:
            return self._boxes.setdefault(key, queue.SimpleQueue())

    def close(self, key: str) -> None:
        """Drop a box: letters for it are thrown away from now on."""
        with self._lock:
            self._boxes.pop(key, None)

    def sort(self, key: str, message: dict[str, Any]) -> None:
        """Put a message into its box."""
        with self._lock:
            box = self._boxes.get(key)
        if box is not None:
            box.put(message)

    def tell_all(self, message: dict[str, Any]) -> None:
        """Put a message into every box."""
        with self._lock:
            boxes = list(self._boxes.values())
        for box in boxes:
            box.put(message)
