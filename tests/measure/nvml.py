"""A card that answers as NVML does, with counters that a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class ScriptedNvml:
    """The functions of `pynvml` that are used; what is not set is not supported."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def answer(handle: str, *more: int) -> Any:
            assert handle == "handle"
            found = self.answers[name]  # KeyError: as NVMLError_NotSupported
            return found[more[0]] if isinstance(found, dict) else found

        return answer


def violations(**nanoseconds: int) -> dict[int, Any]:
    kinds = {"power": 0, "thermal": 1, "board": 3}
    return {kinds[name]: SimpleNamespace(violationTime=value) for name, value in nanoseconds.items()}


def processes(*pids: int) -> list[Any]:
    return [SimpleNamespace(pid=pid) for pid in pids]
