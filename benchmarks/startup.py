"""How long does it take to start? `llmtrack --help` against `mlflow --help`, and `llmtrack compare` against the import of MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.query import EXPERIMENT, copy_runs
from benchmarks.read_runs import fill
from benchmarks.results import Findings, Goal, benchmark, rounds, row

ARMS = {
    "help": ["-m", "llmtrack", "--help"],
    "mlflow help": ["-m", "mlflow", "--help"],
    "compare": ["-m", "llmtrack", "compare"],
    "import mlflow": ["-c", "import mlflow"],
    "import llmtrack": ["-c", "import llmtrack"],
    "import nothing": ["-c", "pass"],
}


def timed(arguments: Sequence[str], uri: str) -> Callable[[], dict[str, float]]:
    """Return a function that runs Python with arguments and times it."""

    def run() -> dict[str, float]:
        environment = os.environ | {"MLFLOW_TRACKING_URI": uri}
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        return {"s": time.perf_counter() - start}

    return run


def measure(small: bool) -> Findings:
    """Start each, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mlflow.db")
        uri = f"sqlite:///{path}"
        fill(uri, EXPERIMENT, 10)
        copy_runs(path, 100)
        samples = rounds({name: timed(arguments, uri) for name, arguments in ARMS.items()}, 1 if small else 4)
    seconds = {name: samples[name]["s"] for name in ARMS}
    return Findings(
        (
            row(
                "llmtrack --help",
                "s",
                seconds["help"],
                seconds["mlflow help"],
                peer="mlflow --help",
                goal=Goal(most=0.25),
            ),
            row(
                "llmtrack compare, 100 runs",
                "s",
                seconds["compare"],
                seconds["import mlflow"],
                peer="import mlflow",
                goal=Goal(most=2),
            ),
            row(
                "import llmtrack",
                "s",
                seconds["import llmtrack"],
                seconds["import nothing"],
                peer="python -c pass",
            ),
        )
    )


main = benchmark("Starting")(measure)

if __name__ == "__main__":
    main()
