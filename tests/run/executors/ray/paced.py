"""A backend whose calls take as long as the model's name says, and which fails once as it says."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure import ceilings, disturbances
from llmtrack.models.load import identify_model

# Measuring this machine's ceilings takes each worker seconds.
ceilings.copy_bandwidth = lambda device: 1e10
ceilings.matrix_rate = lambda device, arithmetic: 1e11
# A baseline that other tests disturb would be held back, and measured again after all others.
disturbances.BUSY_SHARE = 1.0


class RealClock(FakeClock):
    """A clock of real time."""

    def advance(self, seconds):
        time.sleep(seconds)


class PacedEngine(ScriptedEngine):
    """Takes the given seconds for a call of two tokens or a batch; 13 new tokens hang it, always or the first time."""

    def __init__(self, model):
        words = dict(word.split("-") for word in model.split("."))
        self.pause = float(words["s"]) / 100
        super().__init__(RealClock(), Script(self.pause, 0.0))
        self.hangs = words.get("hangs", "")

    def score(self, *batch):
        self.clock.advance(self.pause)
        return super().score(*batch)

    def generate(self, request, on_step):
        if request.max_new_tokens == 13 and self.hangs == "always":
            os.kill(os.getpid(), signal.SIGSTOP)
        if request.max_new_tokens == 13 and once(self.hangs):
            time.sleep(600)
        return super().generate(request, on_step)


def once(name):
    """Return whether this is the first call on this machine."""
    if not name:
        return False
    try:
        (Path(os.environ["PACED_LOG"]) / f"once {name}").mkdir()
    except FileExistsError:
        return False
    return True


def load(variant):
    if not variant.model.startswith("synthetic:"):
        return PacedEngine(variant.model)
    engine = PacedEngine("s-1.hangs-killed")
    tags = identify_model(variant.model, None, "cpu").digests.tags
    engine._info = replace(engine.info, tags=tags)
    return engine
