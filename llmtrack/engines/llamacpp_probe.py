"""Whether llama.cpp runs a file on this machine, found out where its death ends nothing."""

from __future__ import annotations

from pathlib import Path

from llmtrack.errors import ScenarioError
from llmtrack.host.machine import cpu_flags
from llmtrack.llamacpp.decoder import LlamaDecoder
from llmtrack.llamacpp.library import library
from llmtrack.models.cache import cache_root, file_digest, keep_note
from llmtrack.quantize.isolated import run_isolated
from llmtrack.spec.serialization import digest

TRIED_TOKENS = 33
"""More than one, so that the kernels of prompts are tried, and those of single tokens after them."""


def try_once(path: Path) -> None:
    """Run a file in a process of its own, once for each file, build of llama.cpp and kind of CPU.

    llama.cpp is compiled where it is installed. Where the compiler did that wrong, or the CPU is another one, running it
    ends the process without a word.

    Raises:
        ScenarioError: it ended so.
    """
    cpp = library()
    build = [cpp.version, [[part.name, part.stat().st_size, part.stat().st_mtime_ns] for part in cpp.files]]
    note = cache_root() / "tried" / digest([file_digest(path), build, sorted(cpu_flags())])
    if note.exists():
        return
    try:
        run_isolated("trying it", _try, str(path))
    except ScenarioError as error:
        how = f": {cpp.remedy}" if "SIGILL" in str(error) else ""
        raise ScenarioError(f"llama.cpp cannot run {path.name} here: {error}{how}", kind="unsupported") from error
    keep_note(note, "")


def _try(path: str) -> None:
    decoder = LlamaDecoder(Path(path), threads=1)
    tokens = [token % decoder.vocab_size for token in range(TRIED_TOKENS)]
    decoder.start(1, TRIED_TOKENS + 1, 1)
    decoder.run([tokens], [0], [0])
    decoder.run([tokens[:1]], [TRIED_TOKENS], [0])
    decoder.close()
