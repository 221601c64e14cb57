"""Real stores: a migrated sqlite database that is copied per test, and one MLflow server for a session."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmtrack.tracking.uri import sqlite_path
from llmtrack.tracking.write.tracker import Tracker
from tests.conftest import HANG_S, made_once


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "LLMTRACK_")):
            monkeypatch.delenv(name)
    # Set here, so that monkeypatch removes what `connect` sets by default.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def uri(template_database: Path, tmp_path: Path) -> str:
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copyfile(template_database, path)
    return f"sqlite:///{path}"


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def tracker(uri: str, tmp_path: Path, messages: list[str]) -> Tracker:
    return Tracker.open(uri, spool=tmp_path / "spool", notify=messages.append)


@pytest.fixture
def filled_once(
    uri: str, template_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[Tracker], Any]], Any]:
    """Fill the test's store as a function does, and return what it returns, as JSON has it.

    MLflow takes seconds to write what is copied at once: it is written once for all tests that give it the same name.
    """

    def filled(name: str, fill: Callable[[Tracker], Any]) -> Any:
        def make(folder: Path) -> None:
            shutil.copyfile(template_database, folder / "mlflow.db")
            result = fill(Tracker.open(f"sqlite:///{folder / 'mlflow.db'}", spool=folder / "spool"))
            (folder / "result.json").write_text(json.dumps(result))

        folder = made_once(tmp_path_factory, name, make)
        shutil.copyfile(folder / "mlflow.db", str(sqlite_path(uri)))
        return json.loads((folder / "result.json").read_text())

    return filled


class Server:
    """An MLflow server with a database and artifacts of its own.

    Args:
        folder: of its database.
        options: further ones of `mlflow server`.
        artifacts: the option that says where artifacts go, and its value; None: a folder beside the database.
        environment: variables of its process.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        artifacts: tuple[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._options = [*options, *(artifacts or ("--artifacts-destination", str(folder / "artifacts")))]
        self._environment = environment or {}
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **self._environment}
        command = [sys.executable, "-m", "mlflow", "server", "-w", "1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        command += self._options
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            if self._answers():
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.3)
        pytest.fail(f"mlflow server did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


@pytest.fixture(scope="session")
def server(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(template_database, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


class Forwarder:
    """A TCP port in front of a server that can be closed and opened at once, as a server that goes down."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._target_port = target_port
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        code = FORWARD.format(port=self.port, target=self._target_port)
        self._process = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail("the forwarder did not start")

    def down(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


FORWARD = """
import socket, threading
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    finally:
        for s in (a, b):
            try: s.shutdown(socket.SHUT_RDWR)
            except OSError: pass
listener = socket.create_server(("127.0.0.1", {port}), reuse_port=False)
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", {target}))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@pytest.fixture
def line(server: Server) -> Iterator[Forwarder]:
    forwarder = Forwarder(server.port)
    forwarder.up()
    yield forwarder
    forwarder.down()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def spooled(tmp_path: Path) -> Callable[[], list[str]]:
    """Names of the records that lie in the spool."""
    return lambda: sorted(path.parent.name for path in (tmp_path / "spool").glob("*/entry.json"))
