"""A run is promoted to MLflow's registry, served by MLflow, and answers as `llmtrack generate` does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from experiments import quantization, tune
from llmtrack.cli import main
from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.host.packages import available
from llmtrack.report.terminal import make_console
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.promote import promote
from llmtrack.run.reproduce import PROMPT, generate_command, variant_of
from llmtrack.run.study.study import run_study
from llmtrack.spec.pointer import Pointer, read_pointer
from llmtrack.spec.scenario import Variant
from llmtrack.tracking.read.query import runs_of_id
from llmtrack.tracking.write.models import name_and_alias
from tests.conftest import HANG_S, make_here
from tests.search_path import with_folders
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    free_port,
    messages,
    tracker,
    uri,
)
from tests.tracking.samples import ENVIRONMENT, failure, measurement

ROOT = Path(__file__).resolve().parents[2]
ASKED, NEW_TOKENS = "The harbour wakes", 5
LOADED = {"model_id": "synthetic:tiny", "device": "cpu", "dtype": "float32", "threads": 2, "race_place": "winner"}
RECIPES = ("onnx/int8-weight-only",) if available("onnx", "any") else ("torch/float32",)


@pytest.mark.parametrize("text", ["smollm2", "@champion", "a/b@c", "smollm2@", "smollm2@v3", "smollm2@latest", "a@b c"])
def test_an_invalid_target_is_refused(text):
    with pytest.raises(UsageError, match=r"is not a version: write NAME@alias"):
        name_and_alias(text)


def test_a_target_is_a_name_and_an_alias():
    assert name_and_alias("smollm2 on my laptop@champion") == ("smollm2 on my laptop", "champion")


def test_a_pointer_is_read_back_and_refuses_other_files(tmp_path):
    pointer = Pointer(Variant("packaged:tiny", options=(("threads", 2),)), {"weights_digest": "abc"})
    assert read_pointer(tmp_path) is None
    pointer.write(tmp_path)
    assert read_pointer(tmp_path) == pointer
    pointer.check({"weights_digest": "abc", "tokenizer_digest": "more"})
    with pytest.raises(
        ModelLoadError, match=r"packaged:tiny is not the model that was registered \(weights_digest is xyz, was abc\)"
    ):
        pointer.check({"weights_digest": "xyz"})


@pytest.mark.slow(1)
def test_a_refused_promotion_is_one_line(tracker, uri):  # noqa: F811
    study = tracker.start_study("precision", "q", {}, ENVIRONMENT)
    failed = tracker.log(study, failure())
    several = [tracker.log(study, measurement(name)) for name in ("a", "b")]
    tracker.finish_study(study, "finished")
    assert None not in several
    refused = {
        failed: "has no logged model in MLflow",
        study.run_id: "names 3 runs",
        "0" * 32: "is not the run of a scenario",
    }
    for run_id, why in refused.items():
        done = CliRunner().invoke(main, ["promote", run_id, "--as", "a@b", "--tracking-uri", uri])
        assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
        assert why in done.output
    assert MlflowClient(uri).search_registered_models() == []


@pytest.mark.slow(1)
@pytest.mark.parametrize("exit_code", [0, 4])
def test_tune_registers_a_proven_answer(tracker, uri, monkeypatch, capsys, exit_code):  # noqa: F811
    study = tracker.start_study("tune", "q", {}, ENVIRONMENT)
    run_id = tracker.log(study, measurement(facts=LOADED))
    tracker.finish_study(study, "finished")
    result = SimpleNamespace(tracked=runs_of_id(run_id, uri), study=study, exit_code=exit_code)
    monkeypatch.setattr(tune, "perform", lambda config, console: SimpleNamespace(tracker=tracker, result=result))
    with pytest.raises(SystemExit) as ended:
        tune.run(tune.Config(register="smollm2"))
    assert ended.value.code == exit_code
    expected = (
        "Registered: models:/smollm2@champion is version 1; serve it: mlflow models serve -m models:/smollm2@champion"
    )
    assert (expected in " ".join(capsys.readouterr().out.split())) == (exit_code == 0)
    assert len(MlflowClient(uri).search_registered_models()) == (exit_code == 0)


@pytest.mark.slow(1)
def test_an_answer_that_cannot_be_registered_is_kept(tracker, uri, monkeypatch, capsys):  # noqa: F811
    study = tracker.start_study("tune", "q", {}, ENVIRONMENT)
    run_id = tracker.log(study, measurement(facts={**LOADED, "task": "train"}))
    tracker.finish_study(study, "finished")
    result = SimpleNamespace(tracked=runs_of_id(run_id, uri), study=study, exit_code=0)
    monkeypatch.setattr(tune, "perform", lambda config, console: SimpleNamespace(tracker=tracker, result=result))
    with pytest.raises(SystemExit) as ended:
        tune.run(tune.Config(register="smollm2"))
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "not registered (run" in printed
    assert f"llmtrack promote {run_id} --as smollm2@champion" in printed


def test_tune_refuses_an_invalid_name_before_measuring():
    with pytest.raises(UsageError, match="'a/b@champion' is not a version"):
        tune.Config(register="a/b")


@contextmanager
def _served(model: str, uri: str, folder: Path):  # noqa: F811
    """Yield the port of `mlflow models serve`."""
    port = free_port()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # MLflow starts uvicorn by its name
    environment = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": with_folders(ROOT)}
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        model,
        "-p",
        str(port),
        "--env-manager",
        "local",
    ]
    with open(folder / "serve.log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + HANG_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                time.sleep(0.3)
        assert process.poll() is None, (folder / "serve.log").read_text()[-3000:]
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow(60)
def test_a_promoted_run_serves_the_output_of_generate(tracker, uri, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    make_here(monkeypatch)
    experiment = quantization.build(
        quantization.Config(
            model="synthetic:tiny",
            max_new_tokens=4,
            min_repeats=1,
            min_seconds=0,
            max_seconds=1,
            recipes=RECIPES,
            max_length=16,
            prompt_tokens=8,
            reference_tokens=16,
        )
    )
    result = run_study(experiment, tracker=tracker, executor=InlineExecutor(), console=make_console())
    assert result.exit_code == 0
    client = MlflowClient(uri)
    with_model = [run for run in result.tracked if run.text("model_uri")]
    for number, run in enumerate(with_model):
        done = CliRunner().invoke(main, ["promote", run.run_id[:8], "--as", "tiny@champion", "--tracking-uri", uri])
        assert done.exit_code == 0, done.output
        before = f" (before: version {number})" if number else ""
        assert done.stdout == f"models:/tiny@champion is version {number + 1}{before}\n"
        version = client.get_model_version_by_alias("tiny", "champion")
        assert (version.run_id, version.tags["llmtrack.model_uri"]) == (run.run_id, run.model_uri)
        logged = client.get_logged_model(run.text("model_uri").removeprefix("models:/"))
        assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": "tiny", "version": str(number + 1)}]
        assert version.tags["weights_digest"] == run.text("env.weights_digest")

        (second,) = runs_of_id(run.run_id, uri)
        words = shlex.split(generate_command(variant_of(second)))
        words[words.index("--max-new-tokens") + 1] = str(NEW_TOKENS)
        said_by_command = CliRunner().invoke(main, [ASKED if word == PROMPT else word for word in words[1:]])
        assert said_by_command.exit_code == 0, said_by_command.output

        params = {"max_new_tokens": NEW_TOKENS}
        if run is with_model[-1]:
            with _served("models:/tiny@champion", uri, tmp_path) as port:
                body = json.dumps({"inputs": [ASKED], "params": params}).encode()
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
                )
                (answer,) = json.loads(urllib.request.urlopen(request, timeout=HANG_S).read())["predictions"]
        else:  # as the server does, without its start of seconds
            (answer,) = mlflow.pyfunc.load_model("models:/tiny@champion").predict([ASKED], params=params)
        assert answer == said_by_command.stdout.removesuffix("\n")
        assert answer

    # Once more: the same version, and none further.
    assert promote(run.run_id, "tiny@challenger", uri).version == str(number + 1)
    assert len(client.search_model_versions("name = 'tiny'")) == number + 1
    files = Path(logged.artifact_location)
    held = [path for path in files.rglob("*") if path.is_file()]
    assert {"MLmodel", "requirements.txt", "input_example.json", "llmtrack.json"} <= {path.name for path in held}
    assert all("==" in line for line in (files / "requirements.txt").read_text().split())
    assert sum(path.stat().st_size for path in held) < 20_000, "no weights"
