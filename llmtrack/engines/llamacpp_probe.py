"""Check in a separate process whether llama.cpp can run a file on this machine without crashing."""

from __future__ import annotations

from pathlib import Path

from llmtrack.errors import ScenarioError
from llmtrack.host.isolated import run_isolated
from llmtrack.host.machine import cpu_flags
from llmtrack.llamacpp.decoder import LlamaDecoder
from llmtrack.llamacpp.library import library
from llmtrack.models.cache import cache_root, file_digest, write_note
from llmtrack.spec.serialization import digest

TRIED_TOKENS = 33
"""Enough tokens to exercise the kernels for prompts, and then those for single tokens."""


def try_once(path: Path) -> None:
    """Run a file in a separate process, once per file, llama.cpp build and kind of CPU.

    If llama.cpp was miscompiled on installation, or the CPU differs, running it kills the process silently.

    Raises:
        ScenarioError: the process died.
    """
    cpp = library()
    build = [cpp.version, [[part.name, part.stat().st_size, part.stat().st_mtime_ns] for part in cpp.files]]
    note = cache_root() / "tried" / digest([file_digest(path), build, sorted(cpu_flags())])
    if note.exists():
        return
    try:
        run_isolated("trying it", _try, str(path))
    except ScenarioError as error:
        remedy = f": {cpp.remedy}" if "SIGILL" in str(error) else ""
        raise ScenarioError(f"llama.cpp cannot run {path.name} here: {error}{remedy}", kind="unsupported") from error
    write_note(note, "")


def _try(path: str) -> None:
    decoder = LlamaDecoder(Path(path), threads=1)
    tokens = [token % decoder.vocab_size for token in range(TRIED_TOKENS)]
    decoder.start(1, TRIED_TOKENS + 1, 1)
    decoder.run([tokens], [0], [0])
    decoder.run([tokens[:1]], [TRIED_TOKENS], [0])
    decoder.close()
