"""Cache Python's bytecode even if the environment disables it.

Container images set `PYTHONDONTWRITEBYTECODE`; then each worker recompiles PyTorch and transformers, which takes longer
than importing them.
"""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec

# A large package: if it is compiled, so is everything installed with it.
_LARGE = "transformers"


def bytecode_environment() -> dict[str, str]:
    """Return the environment variables that enable the bytecode cache in children; empty if it is enabled."""
    if not sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return {}
    spec = find_spec(_LARGE)
    if spec is None or spec.origin is None or os.path.exists(cache_from_source(spec.origin)):
        return {}
    # Imported late: it would slow the start of every command by a fifth, and few need it.
    from llmtrack.models.cache import cache_root

    return {"PYTHONPYCACHEPREFIX": str(cache_root() / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def cache_bytecode() -> None:
    """Enable the bytecode cache in this process and its children."""
    if variables := bytecode_environment():
        os.environ.update(variables)
        sys.pycache_prefix, sys.dont_write_bytecode = variables["PYTHONPYCACHEPREFIX"], False
