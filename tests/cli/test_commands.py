"""The command line: fast help, one-line errors, machine-readable output."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner

from llmtrack import devices
from llmtrack.cli import doctor, main
from llmtrack.errors import UsageError
from llmtrack.host.signals import Terminated
from llmtrack.models.cache import cache_root
from llmtrack.models.source import parse_candidates
from llmtrack.quality.corpora import load_corpus
from llmtrack.testing.models import spoiled_model
from llmtrack.tracking.uri import resolve_tracking_uri, sqlite_path
from llmtrack.tracking.write.spool import Spool
from llmtrack.tracking.write.tracker import Tracker
from tests.conftest import HANG_S
from tests.search_path import with_folders
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    filled_once,
    uri,
)
from tests.tracking.samples import ENVIRONMENT, failure, measurement

COMMANDS = sorted(main.commands)
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result


def fresh(*arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process."""
    environment = os.environ | {"PYTHONPATH": with_folders(ROOT)}
    command = [sys.executable, "-m", "llmtrack", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=HANG_S)


@pytest.fixture
def tracked(filled_once: Callable, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A store with a study of two runs, one of which failed."""
    filled_once("a-failed-study", track)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


def track(tracker: Tracker) -> None:
    study = tracker.start_study("prompt_length", "Why?", {"a": 1}, ENVIRONMENT)
    tracker.log(study, measurement())
    tracker.log(study, failure("p128"))
    tracker.finish_study(study, "failed")


@pytest.mark.slow(1)
def test_help_imports_nothing_heavy():
    code = f"""
import sys
from llmtrack.cli import main
for arguments in ([], *([name] for name in {COMMANDS})):
    main([*arguments, "--help"], standalone_mode=False)
heavy = {{"torch", "transformers", "mlflow", "pandas", "numpy", "matplotlib", "rich"}} & set(sys.modules)
print("HEAVY:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("HEAVY: []")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_describes_every_command(command):
    output = run(*command, "--help").output
    assert output.startswith("Usage:")
    assert len(output.splitlines()) > 4


def test_version():
    import llmtrack

    assert run("--version").output == f"llmtrack, version {llmtrack.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare"], "there is no study yet: `llmtrack run baseline` makes one"),
        (
            ["compare", "--study", "latest:precision"],
            "there is no study of experiment 'precision' yet: `llmtrack run precision` makes one",
        ),
        (["runs", "--study", "nope"], "there is no study 'nope'"),
        (["runs", "--experiment", "nope"], "there is no experiment 'nope'"),
        (["runs", "--tracking-uri", "mlruns"], "old file store"),
        (["runs", "--search", "params.x = "], "rejects the filter"),
        (["compare", "--study", "latest"], "there is no study"),
    ],
)
@pytest.mark.usefixtures("_clean_environment")
def test_errors_are_one_line_and_exit_code_2(uri, monkeypatch, arguments, message):  # noqa: F811
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [["nope"], ["runs", "--format", "xml"], ["runs", "--status", "DONE"], ["--x"]])
def test_usage_errors_exit_with_2(arguments):
    result = run(*arguments, code=2)
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("_clean_environment")
@pytest.mark.parametrize("command", ["runs", "compare"])
def test_a_folder_without_runs_is_reported_in_one_line_and_left_empty(tmp_path, command):
    result = run(command, code=2)
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert "mlflow.db" in result.stderr
    assert list(tmp_path.glob("*.db")) == [], "asking creates no database"


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
def test_runs_as_json_and_csv():
    rows = json.loads(run("runs", "--format", "json").stdout)
    assert {row["scenario"]: row["status"] for row in rows} == {"p64": "FINISHED", "p128": "FAILED"}
    (done,) = [row for row in rows if row["status"] == "FINISHED"]
    assert done["tokens_per_sec"] == 10.25
    table = list(csv.DictReader(io.StringIO(run("runs", "--format", "csv").stdout)))
    assert [row["scenario"] for row in table] == [row["scenario"] for row in rows]


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
def test_runs_as_a_table_and_chosen():
    assert "2 runs" in run("runs").stdout
    assert "1 run\n" in run("runs", "--status", "FAILED").stdout
    assert "1 run\n" in run("runs", "--kind", "study", "--experiment", "none").stdout
    assert "2 runs" in run("runs", "--study", "latest").stdout
    assert "1 run\n" in run("runs", "--search", "P128").stdout


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked", "undrawn")
def test_compare_prints_and_writes(tmp_path):
    output = run("compare", "--output", str(tmp_path / "out")).stdout
    assert "2 of 2 tracked runs" in output
    assert "p128 failed: out of memory: needs 9 GiB" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table.csv", "table.md", "table.png"}


@pytest.mark.usefixtures("_clean_environment")
def test_doctor_lists_everything_it_checks():
    findings = json.loads(run("doctor", "--format", "json").stdout)
    states = {finding["topic"]: finding["state"] for finding in findings}
    assert states["python"] == states["torch"] == states["transformers"] == states["mlflow"] == "ok"
    assert states["onnx"] in ("ok", "missing")
    assert {"machine", "gpu", "bfloat16", "backends", "packaged:smollm2", "tracking"} <= set(states)
    assert all(finding["remedy"] for finding in findings if finding["state"] == "broken")
    text = run("doctor").stdout
    for finding in findings:
        assert finding["topic"] in text


@pytest.mark.usefixtures("_clean_environment")
@pytest.mark.parametrize(("native", "text"), [(True, "supported on cpu"), (False, "supported on cpu (emulated, slow)")])
def test_doctor_reports_emulated_bfloat16(monkeypatch, native, text):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(devices, "supports_bfloat16", lambda kind: kind == "cpu")
    texts = {finding["topic"]: finding["text"] for finding in json.loads(run("doctor", "--format", "json").stdout)}
    assert texts["bfloat16"] == text


@pytest.mark.usefixtures("_clean_environment")
def test_doctor_hides_credentials_and_never_raises(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:geheim@127.0.0.1:9/")
    result = run("doctor")
    assert "geheim" not in result.output
    assert "llmtrack sync" in result.output


@pytest.mark.usefixtures("_clean_environment")
def test_a_broken_library_is_a_finding_and_exit_code_1(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run("doctor", "--format", "json", code=1)
    (finding,) = [item for item in json.loads(result.stdout) if item["state"] == "broken"]
    assert finding["topic"] == "transformers"
    assert finding["remedy"]


@pytest.mark.usefixtures("_clean_environment")
def test_doctor_and_sync_fail_while_a_corrupt_record_exists(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMTRACK_SPOOL", str(tmp_path))
    assert run("sync").stdout == "0 sent, 0 still kept\n"
    assert doctor._spool().state == "ok"
    (tmp_path / "corrupt" / "1-a").mkdir(parents=True)
    result = run("sync", code=1)
    assert result.stdout == "0 sent, 0 still kept\n"
    assert f"1 record in {tmp_path / 'corrupt'} cannot be read: look at the entry.json" in result.stderr
    finding = doctor._spool()
    assert (finding.state, finding.text) == ("broken", f"1 record in {tmp_path / 'corrupt'} cannot be read")
    assert finding.remedy.startswith("look at the entry.json of each")
    (tmp_path / "corrupt" / "1-a").rmdir()
    (tmp_path / "corrupt").rmdir()
    (tmp_path / "corrupt").touch()
    assert doctor._safely(doctor._spool).state == "broken"


@pytest.mark.parametrize("address", ["mlruns/", "http://localhost:port", "sqlite:////nowhere/mlflow.db"])
def test_doctor_gives_a_remedy_for_an_unusable_store(monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    finding = doctor._safely(doctor._tracking)
    assert (finding.state, finding.remedy) == ("broken", "")
    assert "use " in finding.text or "write " in finding.text


@pytest.mark.usefixtures("_clean_environment")
def test_sync_of_nothing(tmp_path):
    assert run("sync", "--spool", str(tmp_path / "spool")).output == "0 sent, 0 still kept\n"


def test_the_module_is_the_command():
    done = fresh("--version")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow(2)
def test_a_reader_that_stops_early_gets_no_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = fresh("sync", "--spool", str(tmp_path), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Terminated(signal.SIGTERM), 143, "terminated\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            "error: cannot write the output: No space left on device\n",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a', '/b']"),
            2,
            "error: No usable temporary directory found in ['/a', '/b']: free some space there, or set TMPDIR to a folder that "
            "can be written\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "x/y"),
            2,
            "error: cannot use x/y: Permission denied\n",
        ),
    ],
)
def test_every_end_of_a_command_is_reported_in_one_line(monkeypatch, error, code, output):
    monkeypatch.setattr("llmtrack.tracking.write.sync.sync", Mock(side_effect=error))
    assert run("sync", code=code).output == output


def test_a_missing_working_folder_is_named(monkeypatch):
    gone = Mock(side_effect=FileNotFoundError(errno.ENOENT, "No such file or directory"))
    monkeypatch.setattr("llmtrack.tracking.write.sync.sync", gone)
    monkeypatch.setattr("os.getcwd", gone)
    assert run("sync", code=2).output == "error: the working folder is gone: go to another\n"


def test_a_terminated_command_leaves_no_temporary_files(monkeypatch, tmp_path):
    def sync(*args):
        with tempfile.TemporaryDirectory(dir=tmp_path):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("llmtrack.tracking.write.sync.sync", sync)
    run("sync", code=143)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_unwritable_output_is_reported_in_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = fresh(*arguments, stdout=full)
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: No space left on device\n")


def test_an_unknown_users_home_is_taken_literally_as_in_a_shell(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    there = "~no-such-user/x"
    monkeypatch.setenv("LLMTRACK_CACHE", there)
    assert cache_root() == Spool(Path(there)).folder == tmp_path / there
    assert sqlite_path(resolve_tracking_uri(f"{there}.db")) == tmp_path / f"{there}.db"
    assert resolve_tracking_uri(f"sqlite:///{there}.db") == resolve_tracking_uri(f"{there}.db")
    with pytest.raises(UsageError, match="does not exist"):
        parse_candidates(there)
    with pytest.raises(UsageError, match="no corpus"):
        load_corpus(f"{there}.txt")


@pytest.mark.parametrize("option", ["model=x", "dtype=float16"])
def test_a_dedicated_option_is_refused_as_a_backend_option(option):
    result = run("generate", "a", "--option", option, code=2)
    assert (
        result.output
        == f"error: --option {option.split('=')[0]}=... is an option of its own: use --{option.split('=')[0]}\n"
    )


def test_an_interrupt_during_import_is_reported_in_one_line():
    code = "import sys; sys.argv = ['-m']; import experiments; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


def test_generate_refuses_a_model_with_non_finite_logits(own_cache, tmp_path):
    model = spoiled_model("synthetic:tiny", tmp_path / "model")
    result = run("generate", "a", "--model", str(model), "--device", "cpu", "--max-new-tokens", "2", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(
        "error: the logits of the prompt are not finite in float32: look for damaged weights"
    )


def test_generate_warns_of_an_ignored_revision():
    result = run(
        "generate",
        "a",
        "--model",
        "synthetic:tiny",
        "--device",
        "cpu",
        "--revision",
        "v1",
        "--max-new-tokens",
        "2",
    )
    assert "warning: revision v1 is ignored: synthetic:tiny is not a hub model\n" in result.stderr
    assert "warning" not in result.stdout


def test_an_invalid_value_is_truncated_in_the_message():
    result = run("generate", "a", "--model", "x" * 100_000, code=2)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr) < 3000
