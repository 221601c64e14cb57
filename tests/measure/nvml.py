"""A substitute for `pynvml` with counters set by a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class ScriptedNvml:
    """The functions of `pynvml` in use; those without an answer are unsupported."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def answer(handle: str, *arguments: int) -> Any:
            assert handle == "handle"
            value = self.answers[name]  # KeyError: as NVMLError_NotSupported
            return value[arguments[0]] if isinstance(value, dict) else value

        return answer


def violations(**nanoseconds: int) -> dict[int, Any]:
    kinds = {"power": 0, "thermal": 1, "board": 3}
    return {kinds[name]: SimpleNamespace(violationTime=value) for name, value in nanoseconds.items()}


def processes(*pids: int) -> list[Any]:
    return [SimpleNamespace(pid=pid) for pid in pids]
