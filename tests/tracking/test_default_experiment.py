"""`mlflow run` of an llmtrack project uses the MLflow experiment that `llmtrack run` uses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmtrack.tracking.default_experiment import runs_project
from llmtrack.tracking.read.query import runs

CHECKOUT = str(Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/env/bin/mlflow", "run", CHECKOUT], True),
        (["mlflow.exe", "run", "-e", "tune", CHECKOUT, "-P", "budget=1m"], True),
        (["/env/mlflow/__main__.py", "run", CHECKOUT, "--env-manager", "local"], True),
        (["mlflow", "run", "https://github.com/you/llmtrack", "-e", "baseline"], True),
        (["mlflow", "run", "git@github.com:you/llmtrack.git#sub"], True),
        (["mlflow", "run", "https://github.com/you/other"], False),
        (["mlflow", "run", "https://github.com/you/llmtrack-like"], False),
        (["mlflow", "run", str(Path(CHECKOUT, "tests")), "-P", "model=https://hub/llmtrack"], False),
        (["mlflow", "server", CHECKOUT], False),
        (["mlflow"], False),
        (["pytest", "run", CHECKOUT], False),
    ],
)
def test_only_mlflow_run_of_an_llmtrack_project_is_recognized(command, expected):
    assert runs_project(command) is expected


@pytest.mark.slow(4)
@pytest.mark.parametrize(("text", "expected"), [("name: llmtrack", "llmtrack"), ("name: other", "Default")])
def test_mlflow_asks_for_the_experiment_when_none_is_named(tmp_path, uri, monkeypatch, text, expected):
    from mlflow import MlflowClient
    from mlflow.cli import cli

    (tmp_path / "MLproject").write_text(f"{text}\nentry_points:\n  main:\n    command: exit 0\n", encoding="utf-8")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    arguments = ["run", str(tmp_path), "--env-manager", "local"]
    monkeypatch.setattr(sys, "argv", ["mlflow", *arguments])
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    (run,) = runs(kind=None, tracking_uri=uri).itertuples()
    assert run.mlflow_experiment == expected
    artifacts = MlflowClient(uri).get_run(run.run_id).info.artifact_uri
    assert ("mlartifacts/llmtrack-" in artifacts) is (expected == "llmtrack")
