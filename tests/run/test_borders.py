"""The two sides of the architecture, each with the other's libraries taken away; and how a command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmtrack.tracking.query import runs, studies
from tests.conftest import HANG_S
from tests.extensions import scripted_backend

ROOT = Path(__file__).resolve().parents[2]

# Read by every Python process at its start: the worker may not import mlflow, nor scikit-learn, which takes seconds and
# which transformers imports wherever it is there; the others no framework.
FORBID = """
import importlib.machinery
import sys

measures = "llmtrack.worker.process" in sys.orig_argv
FORBIDDEN = {"mlflow", "sklearn"} if measures else {"torch", "transformers", "tokenizers", "optimum", "onnxruntime"}


class Border:
    # Libraries may ask whether others are there; only to import them is forbidden.
    def find_spec(self, name, path=None, target=None):
        if name in FORBIDDEN:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        raise ImportError(f"{spec.name} has no business in {sys.orig_argv}")

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Border())
"""

QUICK = ["--model", "synthetic:tiny", "--device", "cpu", "--max-new-tokens", "4"]
QUICK += ["--min-repeats", "2", "--min-seconds", "0", "--warmup", "0"]


def command(module, *arguments, path=(), **settings):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        **settings,
    )


@pytest.mark.slow(22)
def test_measuring_needs_no_mlflow_and_tracking_no_framework(tmp_path, uri):
    (tmp_path / "forbid").mkdir()
    (tmp_path / "forbid" / "sitecustomize.py").write_text(FORBID)
    probe = [sys.executable, "-c", "import torch"]
    blocked = os.environ | {"PYTHONPATH": str(tmp_path / "forbid")}
    assert subprocess.run(probe, env=blocked, capture_output=True).returncode != 0, "the border is closed"
    arguments = [*QUICK, "--tracking-uri", uri, "--experiments", "baseline"]
    process = command("experiments.suite", *arguments, path=[tmp_path / "forbid"], cwd=tmp_path)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, output
    tracked = runs(tracking_uri=uri)
    assert set(tracked["scenario"]) == {"baseline"}
    assert set(tracked["status"]) == {"FINISHED"}
    assert set(studies(tracking_uri=uri)["experiment"]) == {"suite", "baseline"}
    assert "Traceback" not in output


@pytest.mark.slow(1)
def test_no_experiment_imports_a_framework():
    code = """
import experiments, importlib, pathlib, sys
for path in pathlib.Path("experiments").glob("*.py"):
    importlib.import_module(f"experiments.{path.stem}")
for declared in experiments.declarations().values():
    declared.build(declared.config())
print(sorted({"torch", "transformers", "onnxruntime", "optimum"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow(8)
def test_a_terminated_command_leaves_nothing_running(tmp_path, uri, monkeypatch):
    """SIGTERM in mid-measurement: exit code 143, the study killed, the worker gone."""
    site = scripted_backend(tmp_path / "site", Path(__file__).with_name("cluster") / "paced.py")
    monkeypatch.setenv("PACED_LOG", str(tmp_path))
    # Its first call of so many tokens goes on for minutes.
    changes = ["--backend", "paced", "--model", "s-1.hangs-long", "--max-new-tokens", "13"]
    arguments = [*QUICK, *changes, "--tracking-uri", uri]
    process = command("experiments.baseline", *arguments, path=[site], cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "once long").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 143, said
    assert "terminated: what was measured is tracked" in said
    assert "Traceback" not in said
    assert runs(kind=None, status="RUNNING", tracking_uri=uri).empty
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert (own["status"], own["outcome"]) == ("KILLED", "killed")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "nope"], "unknown backend 'nope'"),
        (["--tracking-uri", "mlruns"], "old file store"),
        (["--dtype", "int3"], "unknown dtype 'int3': use one of float32"),
        (["--model", "packaged:nothing"], "smollm2"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--max-new-tokens", "0"], "Invalid value"),
    ],
)
def test_a_mistake_ends_with_one_message_and_exit_code_2(
    tmp_path, uri, monkeypatch, capsys, arguments, message
):
    from experiments import baseline
    from llmtrack.run import main as entry
    from llmtrack.run.executors import InlineExecutor

    monkeypatch.setattr(entry, "make_executors", lambda settings: [InlineExecutor()])
    with pytest.raises(SystemExit) as ended:
        baseline.main([*QUICK, "--tracking-uri", uri, *arguments])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "Traceback" not in captured.out + captured.err
    assert studies(tracking_uri=uri).empty
