"""Real stores: a migrated sqlite database that is copied per test, and one MLflow server for a session."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmtrack.tracking.uri import sqlite_path
from llmtrack.tracking.write.tracker import Tracker
from tests.conftest import HANG_S, made_once, wait_for_no_disk
from tests.forking import Forked


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
def experiment() -> str:
    """A new name of an MLflow experiment: tests share a server."""
    return f"experiment-{uuid.uuid4().hex[:8]}"


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
        self._process: Forked | None = None

    def start(self) -> None:
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **self._environment}
        command = ["server", "-w", "1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db", *self._options]
        self._process = Forked(_serve, self.folder, command, environment=environment)
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


def _serve(folder: Path, command: Sequence[str]) -> None:
    """Run `mlflow server` in one process: it would start another, and both would import MLflow for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        # Compiling the routes takes longest, and they are made again below.
        patch.setattr("flask.Flask.add_url_rule", lambda app, rule, *of, **options: None)
        import mlflow.server
    from mlflow.cli import cli
    from sqlalchemy.engine import Engine

    os.setsid()  # to end its processes, too
    with open(folder / "server.log", "ab") as log:
        for standard in (1, 2):
            os.dup2(log.fileno(), standard)
    os.chdir(folder)
    wait_for_no_disk(Engine)
    start_process = mlflow.server._exec_cmd

    def run_uvicorn(command: Sequence[str], extra_env: Mapping[str, str], **options: Any) -> Any:
        if "uvicorn" not in command:  # older releases
            return start_process(command, extra_env=extra_env, **options)
        import uvicorn

        os.environ.update(extra_env)
        # Imported anew, as modules read the variables; Prometheus accepts a counter once.
        for name in [name for name in sys.modules if name.startswith(("mlflow.server", "prometheus_client"))]:
            del sys.modules[name]
        return uvicorn.main(command[command.index("uvicorn") + 1 :])

    mlflow.server._exec_cmd = run_uvicorn
    cli(command)


@pytest.fixture(scope="session")
def server(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(template_database, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


class Line:
    """A TCP port in front of a server whose connections can be cut.

    Args:
        target_port: of the server.
    """

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._target_port = target_port
        self._open: list[socket.socket] = []
        self.up()

    def up(self) -> None:
        """Accept connections."""
        self.restore()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self, after: int = 0) -> None:
        """Close the present connections, and all after a number of new ones."""
        self._left = after
        for connection in self._open:
            _close(connection)

    def restore(self) -> None:
        """Close no further connections."""
        self._left = sys.maxsize

    def down(self) -> None:
        """Refuse connections, as without a server."""
        _close(self._listener)
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self._left <= 0:
                client.close()
                continue
            self._left -= 1
            server = socket.create_connection(("127.0.0.1", self._target_port))
            self._open += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _close(source)
    _close(target)


def _close(connection: socket.socket) -> None:
    # Unlike `close` alone, it wakes up the thread that waits for it.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.fixture
def line(server: Server) -> Iterator[Line]:
    line = Line(server.port)
    yield line
    line.down()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def spooled(tmp_path: Path) -> Callable[[], list[str]]:
    """Names of the records that lie in the spool."""
    return lambda: sorted(path.parent.name for path in (tmp_path / "spool").glob("*/entry.json"))
