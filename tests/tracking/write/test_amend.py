"""Under `mlflow run`, a usage error is written into the run."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from experiments import baseline
from llmtrack.tracking.write.amend import explain_refusal


@pytest.fixture
def mlflow_run(uri, monkeypatch):
    """A run as created by `mlflow run -e baseline`."""
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("e"), run_name="nosy-bear-123")
    client.set_tag(run.info.run_id, "mlflow.project.entryPoint", "baseline")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return lambda: client.get_run(run.info.run_id)


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--nonsense", "1"], "baseline has no parameter nonsense"),
    (["--max-new-tokens", "many"], "many"),
    (["--prompt", ""], "prompt"),
    (["--dtype", "int3"], "unknown dtype 'int3'"),
    (["--executor", "elsewhere"], "elsewhere"),
])  # fmt: skip
def test_a_usage_error_is_written_into_the_run(mlflow_run, arguments, reason):
    with pytest.raises(SystemExit) as ended:
        baseline.main(arguments)
    assert ended.value.code == 2
    run = mlflow_run()
    assert run.info.run_name == "baseline (refused)"
    assert reason in run.data.tags["llmtrack.reason"]
    assert run.data.tags["mlflow.note.content"] == run.data.tags["llmtrack.reason"]
    assert run.data.tags["llmtrack.outcome"] == "failed"


def test_a_secret_in_the_reason_is_redacted(mlflow_run):
    explain_refusal("cannot use http://me:password@host")
    assert "password" not in mlflow_run().data.tags["llmtrack.reason"]


def test_an_unusable_store_is_ignored(mlflow_run, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////no/such/folder/mlflow.db")
    explain_refusal("why")
    monkeypatch.delenv("MLFLOW_RUN_ID")
    explain_refusal("why")
    assert "llmtrack.reason" not in mlflow_run().data.tags
