"""Errors of a store are explained in one line, with the remedy."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from llmtrack.errors import TrackingError
from llmtrack.tracking import store
from llmtrack.tracking.write.tracker import Tracker


class Refusing(http.server.BaseHTTPRequestHandler):
    answer = (200, b"{}")

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        code, body = type(self).answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's own name

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://me:secret@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, b"You are not authenticated."), ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")),
        (
            (403, b"Invalid Host header - possible DNS rebinding attack detected"),
            ("--allowed-hosts 127.0.0.1",),
        ),
        ((403, b"Permission denied"), ("denies permission",)),
        ((200, b"<html>a web page</html>"), ("does not answer as an MLflow server",)),
        ((404, b"nothing here"), ("does not answer as an MLflow server",)),
    ],
)
def test_a_refusal_names_its_cause_and_remedy(refusing, monkeypatch, answer, words):
    monkeypatch.setattr(Refusing, "answer", answer)
    with pytest.raises(TrackingError) as refused:
        store.open_store(refusing)
    text = str(refused.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert "secret" not in text


@pytest.mark.parametrize("place", ["/srv/mlruns/1", "file:///srv/mlruns/1"])
def test_artifacts_on_this_machines_disk_give_one_warning(uri, messages, tmp_path, place, monkeypatch):
    tracker = Tracker.open(uri, spool=tmp_path / "spool", notify=messages.append)
    assert messages == [], "a database is of this machine"
    tracker.delivery.tracking_uri = "http://server:5000"
    client = MlflowClient(uri)
    number = client.create_experiment("elsewhere", artifact_location=place)
    tracker.delivery.experiment_id = number
    tracker.delivery._warn_of_local_artifacts(client)
    tracker.delivery._warn_of_local_artifacts(client)
    (line,) = messages
    assert place in line
    assert "--no-serve-artifacts" in line


def test_artifacts_that_a_server_stores_give_no_warning(uri, messages, tmp_path):
    tracker = Tracker.open(uri, spool=tmp_path / "spool", notify=messages.append)
    tracker.delivery.tracking_uri = "http://server:5000"
    client = MlflowClient(uri)
    for number, place in enumerate(("mlflow-artifacts:/1", "s3://bucket/1")):
        tracker.delivery.experiment_id = client.create_experiment(f"e{number}", artifact_location=place)
        tracker.delivery._warn_of_local_artifacts(client)
    assert messages == []
    assert Path(tracker.spool.folder).parent == tmp_path
