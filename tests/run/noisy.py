"""A backend for worker tests: prints wherever it can, and does to its process what the model's name says."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure import ceilings, disturbances

# Measuring this machine's ceilings takes each worker seconds.
ceilings.copy_bandwidth = lambda device: 1e10
ceilings.matrix_rate = lambda device, arithmetic: 1e11
# A baseline that other tests disturb would be held back, and measured again after all others.
disturbances.BUSY_SHARE = 1.0
DEATHS = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "exits": lambda: os._exit(3)}


def shout(text):
    print(text)
    sys.stdout.flush()
    os.write(1, b'{"event": "not ours"}\n')
    subprocess.run(["echo", text], check=True)


def close_channel():
    """Close all pipes but the standard ones; one of them carries the events."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    time.sleep(3600)


def once(name):
    """Return whether this is the first process that calls it."""
    try:
        Path(os.environ["NOISY_LOG"]).with_name(f"once {name}").mkdir()
    except FileExistsError:
        return False
    return True


def start_child(method):
    process = multiprocessing.get_context(method).Process(target=time.sleep, args=(3600,), daemon=True)
    process.start()
    Path(os.environ["NOISY_LOG"]).with_name("child").write_text(str(process.pid))


class NoisyEngine(ScriptedEngine):
    def __init__(self, model):
        # A reference finds each token half as likely.
        super().__init__(FakeClock(), Script(0.1, 0.1), nll=1.7 if model == "reference" else 1.0)
        self.model = model

    def generate(self, request, on_step):
        shout("generating")
        maybe_stop(self.model, "generating")
        if self.model == "stops closed" and once("closed"):
            close_channel()
        if self.model == "leaves a child":
            start_child("fork")
            os._exit(3)
        return super().generate(request, on_step)

    def score(self, input_ids, attention_mask, scored=None):
        shout("scoring")
        maybe_stop(self.model, "scoring")
        if scored is None:  # not where a timed run looks at the logits behind its output
            DEATHS.get(self.model, lambda: None)()
        return super().score(input_ids, attention_mask, scored)


def maybe_stop(model, where):
    if model == f"stops {where}" and once(where):
        os.kill(os.getpid(), signal.SIGSTOP)


def load(variant):
    shout("loading")
    with open(os.environ["NOISY_LOG"], "a") as log:
        log.write(f"{os.getpid()} {variant.model}\n")
    maybe_stop(variant.model, "loading")
    if variant.model == "has a child":
        start_child("spawn")
    return NoisyEngine(variant.model)
