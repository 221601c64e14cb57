"""How a command ends, and that no experiment imports a framework (see also tests/wall.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import baseline
from llmtrack.run import main as entry
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.tracking.read.query import runs, studies
from tests.conftest import HANG_S
from tests.extensions import scripted_backend
from tests.forking import Forked
from tests.search_path import with_folders

ROOT = Path(__file__).resolve().parents[2]

QUICK = ["--model", "synthetic:tiny", "--device", "cpu", "--max-new-tokens", "4"]
QUICK += ["--min-repeats", "2", "--min-seconds", "0", "--warmup", "0"]


def measure(*arguments):
    """Measure as the command does, in a process group of its own."""
    os.setsid()
    os.dup2(1, 2)
    baseline.main(arguments)


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
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (process.stdout, process.stderr) == ("[]\n", "")


@pytest.mark.slow(6)
@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_command_ended_by_a_signal_leaves_no_process(tmp_path, uri, monkeypatch, number, word):
    """During a measurement: the signal's exit code, a killed study, no worker."""
    site = scripted_backend(tmp_path / "site", Path(__file__).with_name("executors") / "ray" / "paced.py")
    monkeypatch.setenv("PACED_LOG", str(tmp_path))
    # Its first call of so many tokens goes on for minutes.
    changes = ["--backend", "paced", "--model", "s-1.hangs-long", "--max-new-tokens", "13"]
    environment = os.environ | {"PYTHONPATH": with_folders(site, ROOT), "OMP_NUM_THREADS": "1"}
    process = Forked(measure, *QUICK, *changes, "--tracking-uri", uri, environment=environment)
    while not (tmp_path / "once long").exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, number)
    code, output = process.wait(HANG_S), process.stdout.read()
    assert code == 128 + number, output
    assert f"{word}: what was measured is tracked; the same command with resume=true goes on from there" in output
    assert "Traceback" not in output
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
def test_a_user_error_is_one_message_and_exit_code_2(tmp_path, uri, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(entry, "make_executors", lambda settings: [InlineExecutor()])
    with pytest.raises(SystemExit) as ended:
        baseline.main([*QUICK, "--tracking-uri", uri, *arguments])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "Traceback" not in captured.out + captured.err
    assert studies(tracking_uri=uri).empty
