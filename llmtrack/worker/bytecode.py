"""Keep what Python compiles where the environment forbids it beside the sources.

Images of containers set `PYTHONDONTWRITEBYTECODE`: then each worker compiles PyTorch and transformers again, which takes longer than
importing them.
"""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec

# Large enough that compiling it is noticed; where it is compiled, all that was installed with it is.
_LARGE = "transformers"


def kept_in() -> str | None:
    """Return the folder for compiled modules, None where Python keeps them, finds them compiled or was given a folder."""
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return None
    found = find_spec(_LARGE)
    if found is None or found.origin is None or os.path.exists(cache_from_source(found.origin)):
        return None
    # Late: it costs every command a fifth of its start, and hardly any needs it.
    from llmtrack.models.cache import cache_root

    return str(cache_root() / "bytecode")


def bytecode_environment() -> dict[str, str]:
    """Return the environment variables that let a child keep what it compiles; none where it does so already."""
    folder = kept_in()
    return {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""} if folder else {}


def keep_bytecode() -> None:
    """Let this program and its children keep what they compile."""
    if told := bytecode_environment():
        os.environ.update(told)
        sys.pycache_prefix, sys.dont_write_bytecode = told["PYTHONPYCACHEPREFIX"], False
