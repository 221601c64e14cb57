"""Started by Ray in place of its own program, which imports Ray only to replace itself by a worker, which imports it."""

import os
import sys

OF_ITSELF = ("--language=", "--serialized-runtime-env-context=")

if __name__ == "__main__":
    passed = [argument for argument in sys.argv[1:] if not argument.startswith(OF_ITSELF)]
    os.execv(sys.executable, [sys.executable, *passed])
