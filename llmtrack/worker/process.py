"""The worker process: reads jobs and writes events as JSON lines.

It knows nothing of MLflow. Standard output carries events only; whatever libraries print there goes to standard error.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

from llmtrack.errors import LlmtrackError, in_words, is_out_of_memory
from llmtrack.host.console import protect_stream
from llmtrack.host.libraries import gc_paused
from llmtrack.host.processes import OUT_OF_MEMORY, kill_children, when_parent_ends
from llmtrack.spec.events import Event, event_to_json
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import from_json

if TYPE_CHECKING:
    from llmtrack.worker.measuring import EngineCache

ENDING_SECONDS = 120.0
"""Time for an orphaned worker to save a checkpoint."""


def main() -> None:
    """Serve jobs from standard input until it closes, or the parent (its process id is the argument) ends."""
    try:
        _serve()
    except (MemoryError, OSError, ImportError) as error:
        if not is_out_of_memory(error) and not _is_unmapped(error):
            raise
        os._exit(OUT_OF_MEMORY)  # an orderly exit would need memory, too


def _is_unmapped(error: Exception) -> bool:
    """Return True if a library could not be mapped for lack of memory, rather than because of a noexec disk."""
    no_code = hasattr(os, "ST_NOEXEC") and os.statvfs(sys.prefix).f_flag & os.ST_NOEXEC
    return "failed to map segment from shared object" in str(error) and not no_code


def _serve() -> None:
    events = _take_stdout()
    if len(sys.argv) > 1:
        when_parent_ends(int(sys.argv[1]), _end)
    # Ctrl-C and a closed terminal reach the whole process group; the parent decides when to end this worker.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with gc_paused():
        quieten()
        from llmtrack.engines.registry import load_variant
        from llmtrack.worker.measuring import EngineCache, measure_group
    gc.freeze()  # exclude everything loaded so far from later collections

    def send(message: dict[str, object]) -> None:
        # Without a parent nobody listens, but results are still saved where possible.
        with contextlib.suppress(BrokenPipeError):
            events.write(json.dumps(message) + "\n")
            events.flush()

    def emit(event: Event) -> None:
        send({"event": event_to_json(event)})

    send({"ready": True})
    engines = EngineCache(load_variant)
    for line in sys.stdin:
        job = json.loads(line)
        if "measure" in job:
            measure_group([from_json(scenario, Scenario) for scenario in job["measure"]], engines, emit)
            send({"done": True})
        else:
            send(_answer(job, engines))


def _answer(job: dict[str, Any], engines: EngineCache) -> dict[str, object]:
    """Do a job other than measuring; return its answer."""
    if "describe" in job:
        from llmtrack.worker.machine import describe

        return {"machine": describe()}
    if "check" in job:
        return {"problem": _problem([from_json(scenario, Scenario) for scenario in job["check"]])}
    if "free" in job:
        engines.close()
        gc.collect()
        return {"freed": True}
    from llmtrack.worker.identity import identify

    return {"identity": identify(from_json(job["identify"], Scenario))}


def _end() -> None:
    """Save a checkpoint and end, within bounded time."""
    kill_children()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENDING_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _problem(scenarios: Sequence[Scenario]) -> str:
    """Return in one line why a scenario cannot be measured, or an empty text."""
    from llmtrack.worker.identity import check

    try:
        check(scenarios)
    except LlmtrackError as error:
        return in_words(error)
    return ""


def _take_stdout() -> TextIO:
    """Reserve standard output for events; redirect file descriptor 1 to standard error."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Library output ends up in the run's log.
    sys.stdout, sys.stderr = cast("TextIO", protect_stream(sys.stdout)), cast("TextIO", protect_stream(sys.stderr))
    return events


def quieten() -> None:
    """Silence progress bars and advice of libraries, but not their errors."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers imports torchao if installed, which complains about kernels for other hardware.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from llmtrack.host.transformers_compat import import_transformers

    import_transformers()
    from transformers.utils import logging as advice

    advice.disable_progress_bar()


if __name__ == "__main__":
    main()
