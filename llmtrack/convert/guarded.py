"""Run a module, like `python -m`, or a script; exit when standard input closes, that is, when the parent dies.

Stand-alone: it runs in the Python of a build environment, without llmtrack.
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
    del sys.path[0]  # the folder of this file, whose modules must not be importable
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
