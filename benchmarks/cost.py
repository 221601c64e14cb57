"""What does llmtrack itself cost? The wall time of a baseline run without loading and generating, and the time to track a run.

`python -m experiments.baseline` measures a tiny model, as `mlflow run` would start it (whose own start takes as long as
`mlflow --help`). The time of the worker's imports alone is subtracted, since every measurement needs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.results import Findings, Goal, benchmark, rounds, row
from llmtrack.tracking import store
from llmtrack.tracking.write.records import DEFAULT_TRACES
from llmtrack.tracking.write.tracker import Tracker

RUN = """
import sys, time, psutil
born = psutil.Process().create_time()
from experiments import baseline
from llmtrack.run import main
from llmtrack.run.executors import process
from llmtrack.run.study import study
stamps = {"imports": time.time()}
def stamped(home, name, when):
    call = getattr(home, name)
    def timed(*arguments, **settings):
        try:
            return call(*arguments, **settings)
        finally:
            stamps[when] = time.time()
    setattr(home, name, timed)
stamped(main, "open_tracker", "opening the store")
stamped(process.ProcessExecutor, "machine", "waiting for the worker's imports")
stamped(main.Tracker, "start_study", "beginning the study")
decode = process.event_from_json
def stamped_event(message):
    event = decode(message)
    name = type(event).__name__
    if name in ("Log", "Measurement"):
        stamps["loading" if name == "Log" else "generating"] = time.time()
    return event
process.event_from_json = stamped_event
stamped(main.Tracker, "log", "tracking the run")
stamped(study, "report_study", "report and plots")
sys.argv[1:] = "--model synthetic:tiny --threads 1 --max-new-tokens 8 --min-seconds 0 --max-seconds 2".split()
try:
    baseline.main(standalone_mode=False)
except SystemExit:
    pass
stamps["ending"] = time.time()
import json
last, parts = born, {}
for name, at in stamps.items():
    parts[name], last = at - last, at
print(json.dumps(parts))
"""
IMPORTS = """
from llmtrack.worker.process import quieten
quieten()
from llmtrack.worker import machine, measuring
from llmtrack.engines.torch import pytorch
"""
NOT_OURS = ("loading", "generating")
PARAMS, METRICS, TAGS = 30, 40, 40


def run(uri: str) -> dict[str, float]:
    """Measure a baseline; return the seconds of its parts, and of everything except loading and generating."""
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return parts | {"all": sum(seconds for name, seconds in parts.items() if name not in NOT_OURS)}


def imports() -> dict[str, float]:
    """Return the seconds of a process that only does a worker's imports."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return {"s": time.perf_counter() - start}


def by_value(uri: str) -> dict[str, float]:
    """Track a run value by value, with `mlflow.log_param` and `mlflow.log_metric`."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("by value")
    start = time.perf_counter()
    with mlflow.start_run():
        for number in range(PARAMS):
            mlflow.log_param(f"param_{number}", number)
        for number in range(METRICS):
            mlflow.log_metric(f"metric_{number}", number)
        for number in range(TAGS):
            mlflow.set_tag(f"tag_{number}", f"text {number}")
    return {"s": time.perf_counter() - start}


def by_tracker(tracker: Tracker, model_id: str = "synthetic:tiny") -> dict[str, float]:
    """Track a run with llmtrack: through the spool, and directly."""
    from llmtrack.spec.outcome import Generation, Measurement
    from llmtrack.spec.scenario import Scalar, Scenario, Variant
    from llmtrack.spec.task import GenerateTask, RepeatPolicy

    study = tracker.start_study("cost", "?", {}, {f"tag_{number}": f"text {number}" for number in range(TAGS)})
    scenario = Scenario(f"s{time.time_ns()}", Variant("synthetic:tiny"), GenerateTask(("hello",)), RepeatPolicy())
    # With a `model_id` the run also gets a logged model.
    facts: dict[str, Scalar] = {**{f"param_{number}": number for number in range(PARAMS)}, "model_id": model_id}
    texts = ((f"prompt {number}", f"the answer to prompt {number} " * 4) for number in range(DEFAULT_TRACES))
    generations = tuple(Generation(prompt, text, 8, 32, time.time(), 1.5, 0.1, 1, 1) for prompt, text in texts)
    metrics = {f"metric_{number}": float(number) for number in range(METRICS)}
    outcome = Measurement(scenario, "w", facts, metrics, generations=generations)
    start = time.perf_counter()
    tracker.log(study, outcome)
    seconds = time.perf_counter() - start
    tracker.finish_study(study, "finished")
    return {"s": seconds}


def measure(small: bool) -> Findings:
    """Track runs in both ways, and measure whole baselines."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{Path(folder, 'mlflow.db')}"
        store.initialise(uri)
        tracker = Tracker.open(uri, "cost", Path(folder, "spool"))
        tracked = rounds({"ours": partial(by_tracker, tracker), "by value": partial(by_value, uri)}, 1 if small else 7)
        # A trial skips the baseline, which takes most of a minute on a busy machine.
        runs = {} if small else rounds({"run": partial(run, uri), "imports": imports}, 4)
    rows = [
        row(
            "tracking a run",
            "s",
            tracked["ours"]["s"],
            tracked["by value"]["s"],
            where=f"SQLite, {PARAMS} params, {METRICS} metrics, {TAGS} tags; with {DEFAULT_TRACES} generations as a trace",
            peer="value by value",
            goal=Goal(most=0.2),
        ),
        row("tracking a run", "s", tracked["ours"]["s"], where="the same", goal=Goal(most=0.3)),
    ]
    if runs:
        parts, imports_s = runs["run"], runs["imports"]["s"]
        beyond = [total - own for total, own in zip(parts["all"], imports_s, strict=True)]
        rows.append(row("beyond the worker's imports, loading and generating", "s", beyond, goal=Goal(most=3)))
        rows.append(row("the worker's imports alone", "s", imports_s))
        rows += [row(f"of it: {name}", "s", parts[name]) for name in parts if name not in ("all", *NOT_OURS)]
    return Findings(tuple(rows))


main = benchmark("What llmtrack costs")(measure)

if __name__ == "__main__":
    main()
