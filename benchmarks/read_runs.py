"""How fast are many runs read into a DataFrame, against `mlflow.search_runs` on the same store?

Both read every page of one MLflow experiment, in turn, each in a separate process, which isolates the peak memory;
imports are not timed. The order within a pair alternates.

    python -m benchmarks.read_runs --fill 10000 --tracking-uri sqlite:////tmp/many.db    # once, minutes
    python -m benchmarks.read_runs --tracking-uri sqlite:////tmp/many.db --pairs 5
    python -m benchmarks.read_runs --tracking-uri http://127.0.0.1:5000 --pairs 5

Prints time and memory of both and the ratio of each pair (1: equally fast; below: llmtrack is faster) with a bootstrap
95 % interval of the median.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import click

from llmtrack import metrics as schema
from llmtrack.measure.statistics import bootstrap_median_ci, summarize
from llmtrack.tracking import store
from llmtrack.tracking.mlflow_experiments import ensure_experiment
from llmtrack.tracking.uri import resolve_tracking_uri

READ = """
import json, resource, sys, time
import mlflow, pandas
reader, uri, experiment = sys.argv[1:]
mlflow.set_tracking_uri(uri)
client = mlflow.MlflowClient()
number = client.get_experiment_by_name(experiment).experiment_id
client.search_runs([number], max_results=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, cpu = time.perf_counter(), time.process_time()
if reader == "mlflow":
    table = mlflow.search_runs([number])
else:
    from llmtrack.tracking.read.query import runs
    table = runs(experiment, kind=None, tracking_uri=uri)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
prefix = "metrics." if reader == "mlflow" else ""
total = sum(float(table[prefix + name].sum()) for name in ("total_latency_s", "tokens_per_sec"))
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mib": peak / 1024, "grown_mib": (peak - before) / 1024,
                  "runs": len(table), "different": int(table["run_id"].nunique()), "total": round(total, 6)}))
"""
READERS = ("mlflow", "llmtrack")


def read(reader: str, uri: str, experiment: str) -> dict[str, float]:
    """Read all runs in a fresh process; return its cost."""
    done = subprocess.run(
        [sys.executable, "-c", READ, reader, uri, experiment], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def fill(uri: str, experiment: str, count: int) -> None:
    """Write so many runs of 15 params, 20 metrics and 12 tags."""
    from mlflow.entities import Metric, Param, RunTag

    client = store.connect(uri)
    number = ensure_experiment(client, experiment)
    texts: dict[type, str] = {bool: "True", float: "0.5"}
    generator = random.Random(0)
    for n in range(count):
        # A thousand runs a week, a minute apart: busy and idle periods, as in practice.
        begun = 1_790_000_000_000 + 60_000 * n + 7 * 86_400_000 * (n // 1000)
        tags = {"llmtrack.kind": "scenario", "llmtrack.study_id": f"precision-{n // 12:05d}"}
        tags |= {"llmtrack.experiment": "precision", "llmtrack.scenario_id": f"{n % 12:016x}"}
        tags |= {f"llmtrack.env.fact_{i}": f"value {n % 3}" for i in range(8)}
        params = {p.name: texts.get(p.kind, f"{n % 12}") for p in schema.PARAMS[:15]}
        metrics = {m.name: generator.lognormvariate(0, 1) for m in schema.METRICS[:20]}
        run = client.create_run(number, start_time=begun, run_name=f"scenario_{n % 12}")
        client.log_batch(
            run.info.run_id,
            metrics=[Metric(key, value, begun + 1000, 0) for key, value in metrics.items()],
            params=[Param(key, value) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        client.set_terminated(run.info.run_id, end_time=begun + 1000)


@click.command(help=__doc__)
@click.option("--tracking-uri", required=True)
@click.option("--experiment", default="llmtrack", show_default=True, help="Name of the MLflow experiment.")
@click.option("--fill", "count", type=click.IntRange(min=1), help="Write so many runs first, and end.")
@click.option("--pairs", type=click.IntRange(min=1), default=5, show_default=True)
def main(tracking_uri: str, experiment: str, count: int | None, pairs: int) -> None:
    """Fill the store, or read it with both."""
    uri = resolve_tracking_uri(tracking_uri)
    if count is not None:
        begun = time.perf_counter()
        fill(uri, experiment, count)
        print(f"{count} runs written in {time.perf_counter() - begun:.0f} s")
        return
    costs: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS}
    for pair in range(pairs):
        for reader in READERS if pair % 2 else READERS[::-1]:
            costs[reader].append(read(reader, uri, experiment))
    results = {(cost["runs"], cost["different"], cost["total"]) for of_reader in costs.values() for cost in of_reader}
    if len(results) != 1:
        raise click.ClickException(f"the two did not read the same: {results}")
    print(f"{results.pop()[0]} runs, {pairs} pairs")
    for reader, of_reader in costs.items():
        time_s, cpu, peak, grown = (
            summarize([cost[name] for cost in of_reader]) for name in ("seconds", "cpu", "peak_mib", "grown_mib")
        )
        print(
            f"{reader:<9} {time_s.median:6.2f} s [{time_s.ci_low:.2f}, {time_s.ci_high:.2f}], own CPU {cpu.median:.2f} s, "
            f"peak memory {peak.median:.0f} MiB, of which {grown.median:.0f} MiB for reading"
        )
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(costs["llmtrack"], costs["mlflow"], strict=True)]
    low, high = bootstrap_median_ci(ratios)
    print(f"ratio     {summarize(ratios).median:6.2f}   [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
