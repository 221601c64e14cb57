"""Deliver messages from tasks on a cluster to the driver, in sending order."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

Letter = tuple[str, dict[str, Any]]


class Post:
    """Queue of messages in a Ray actor near the driver.

    Ray's result streams are not used: they end for the driver when it cancels a task, losing what an interrupted worker
    still sends; and Ray Client lacks them.
    """

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._there = asyncio.Event()

    async def put(self, key: str, message: dict[str, Any]) -> None:
        """Append a message addressed to a key."""
        self._letters.append((key, message))
        self._there.set()

    async def take(self, seconds: float) -> list[Letter]:
        """Return all messages, waiting up to `seconds` for the first."""
        try:
            await asyncio.wait_for(self._there.wait(), seconds)
        except asyncio.TimeoutError:
            return []
        self._there.clear()
        letters, self._letters = self._letters, []
        return letters


class Boxes:
    """Sorts messages into a mailbox per key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}

    def open(self, key: str) -> queue.SimpleQueue[dict[str, Any]]:
        """Open a mailbox."""
        with self._lock:
            return self._boxes.setdefault(key, queue.SimpleQueue())

    def close(self, key: str) -> None:
        """Close a mailbox; later messages for it are dropped."""
        with self._lock:
            self._boxes.pop(key, None)

    def sort(self, key: str, message: dict[str, Any]) -> None:
        """Deliver a message to its mailbox."""
        with self._lock:
            box = self._boxes.get(key)
        if box is not None:
            box.put(message)

    def tell_all(self, message: dict[str, Any]) -> None:
        """Deliver a message to every mailbox."""
        with self._lock:
            boxes = list(self._boxes.values())
        for box in boxes:
            box.put(message)
