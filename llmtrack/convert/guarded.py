"""Run a module, as `python -m` does, or a script, and end when standard input closes, as it does when the parent dies.

A program of its own: it is run by the Python of a build environment, which has no llmtrack.
"""

import os
import runpy
import sys
import threading


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    del sys.path[0]  # the folder of this file, whose modules are no packages
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
