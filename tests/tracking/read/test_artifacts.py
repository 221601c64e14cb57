"""Text artifacts are read from the local disk, or with as few requests to a server as possible."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from llmtrack.errors import UsageError
from llmtrack.tracking import store
from llmtrack.tracking.read import artifacts
from llmtrack.tracking.read.artifacts import artifact_text, artifact_texts, samples_by_run


class Served:
    """A client of a server with only the methods that may be called."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts, self.asked = texts, []

    def list_artifacts(self, run_id: str) -> list[SimpleNamespace]:
        self.asked.append(("list", run_id))
        return [SimpleNamespace(path="samples.json")] if run_id in self.texts else []

    def download_artifacts(self, run_id: str, path: str, folder: str) -> str:
        self.asked.append(("download", run_id))
        Path(folder, path).write_text(self.texts[run_id])
        return str(Path(folder, path))


def test_a_server_is_opened_once_for_all_texts_and_not_asked_for_runs(monkeypatch):
    served, opened = Served({"a": '{"samples": {"loss": [1, 2]}}', "c": "broken"}), []
    monkeypatch.setattr(store, "open_existing", lambda uri: opened.append(uri) or served)
    assert artifact_texts(["a", "b"], "samples.json", "http://host:5000") == [served.texts["a"], ""]
    assert opened == ["http://host:5000"]
    assert sorted(served.asked) == [("download", "a"), ("list", "a"), ("list", "b")]
    lenient = samples_by_run(["a", "b", "c"], "http://host:5000", lenient=True)
    assert lenient == {"a": {"loss": (1.0, 2.0)}, "b": {}}
    with pytest.raises(UsageError, match=r"samples\.json of run c cannot be read"):
        samples_by_run(["a", "b", "c"], "http://host:5000")


@pytest.mark.slow(1)
@pytest.mark.parametrize("known", [True, False])
def test_a_local_text_is_read_without_mlflow_and_a_missing_one_is_empty(uri, known, monkeypatch, tmp_path):
    client = store.connect(uri)
    # The artifacts of the experiment that is there by default lie in the checkout.
    experiment = client.create_experiment("own", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    client.log_text(run_id, "ä\n", "sample.txt")
    if known:
        monkeypatch.setattr(store, "open_existing", lambda uri: pytest.fail("MLflow was asked"))
    else:
        monkeypatch.setattr(artifacts.direct, "artifact_roots", lambda *of: None)
    wanted = [run_id, "0" * 32, run_id]
    assert artifact_texts(wanted, "sample.txt", uri) == ["ä\n", "", "ä\n"]
    assert artifact_text(run_id, "other.txt", uri) == ""
    client.delete_run(run_id)
    assert artifact_text(run_id, "sample.txt", uri) == "ä\n"
    assert Path(MlflowClient(uri).download_artifacts(run_id, "sample.txt")).read_text() == "ä\n"
