"""A backend for worker processes under test: prints where it can, and ends its process when told to by the model's name."""

import os
import signal
import subprocess
import sys

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine

DEATHS = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "exits": lambda: os._exit(3)}


def shout(text):
    print(text)
    sys.stdout.flush()
    os.write(1, b'{"event": "not ours"}\n')
    subprocess.run(["echo", text], check=True)


class NoisyEngine(ScriptedEngine):
    def __init__(self, model):
        super().__init__(FakeClock(), Script(0.1, 0.1))
        self.model = model

    def generate(self, request, on_step):
        shout("generating")
        return super().generate(request, on_step)

    def score(self, input_ids, attention_mask, scored=None):
        shout("scoring")
        if scored is None:  # not where a timed run looks at the logits behind its output
            DEATHS.get(self.model, lambda: None)()
        return super().score(input_ids, attention_mask, scored)


def load(variant):
    shout("loading")
    with open(os.environ["NOISY_LOG"], "a") as log:
        log.write(f"{os.getpid()} {variant.model}\n")
    return NoisyEngine(variant.model)
