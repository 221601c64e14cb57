"""Start the services of docs/team.md on free ports of this machine, and run a command as a user of the server:

    python -m tests.tracking.team_server python -m benchmarks.team --experiment sweep --nodes 4 --scenarios 200

The services are PostgreSQL, a simulated S3, and the server with its passwords.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import HANG_S
from tests.docs.blocks import ROOT, blocks_of
from tests.search_path import with_folders
from tests.tracking.conftest import free_port

FOUND = [Path(shutil.which("initdb") or "/none"), *Path("/usr/lib/postgresql").glob("*/bin/initdb")]
PROGRAMS = next((path.parent for path in FOUND if path.exists()), None)
MISSING = [name for name in ("psycopg2", "boto3", "moto", "flask_wtf") if not importlib.util.find_spec(name)]


QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class Document:
    """The blocks of docs/team.md, with free ports in place of the written ones."""

    def __init__(self) -> None:
        self.database, self.store, self.server = (free_port() for _ in range(3))
        ports = {"5432": self.database, "9000": self.store, "5000": self.server}
        text = {block.place: block.text for block in blocks_of(ROOT / "docs" / "team.md")}
        self._blocks = [
            re.sub(r"(?<=[: ])(5432|9000|5000)\b", lambda port: str(ports[port[0]]), block) for block in text.values()
        ]

    def lines(self, program: str, word: str) -> list[list[str]]:
        """Split the lines that begin with a program, in the only block that contains a word."""
        (block,) = (text for text in self._blocks if word in text)
        return [shlex.split(line) for line in block.splitlines() if line.split(" ")[0] == program]

    def exports(self, word: str) -> dict[str, str]:
        return dict(pair.split("=", 1) for line in self.lines("export", word) for pair in line[1:])

    def member(self) -> dict[str, str]:
        """Return the environment of a team member."""
        return {**self.exports("llmtrack doctor"), "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.server}"}

    def file(self, word: str) -> str:
        (block,) = (text for text in self._blocks if word in text)
        return block


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, with the programs of Python and PostgreSQL on the PATH."""
    path = f"{Path(sys.executable).parent}:{PROGRAMS}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": with_folders(ROOT), **QUIET, **more}


@contextmanager
def running(
    command: list[str],
    answers: Callable[[], bool],
    folder: Path,
    more: Mapping[str, str],
    user: str | None = None,
) -> Iterator[None]:
    log = folder / f"{Path(command[0]).name}.log"
    with open(log, "ab") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(more),
            stdout=out,
            stderr=out,
            start_new_session=True,
            user=user,
        )
    try:
        deadline = time.monotonic() + HANG_S
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def status(url: str, host: str | None = None, user: str | None = None) -> int:
    """Return the HTTP status of a GET; 0 without an answer."""
    request = urllib.request.Request(url)
    if host:
        request.add_header("Host", host)
    if user:
        request.add_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@contextmanager
def postgres(port: int, password: str) -> Iterator[None]:
    """Run PostgreSQL with a user `mlflow`; root runs it as the user of its package, since it refuses to run as root."""
    user = "postgres" if os.getuid() == 0 else None
    # Other users cannot enter pytest's temporary folders.
    with tempfile.TemporaryDirectory(dir="/tmp" if user else None) as name:
        folder = Path(name)
        (folder / "password").write_text(password)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        create = ["initdb", "-D", "data", "-U", "mlflow", "--pwfile=password", "--auth=scram-sha-256"]
        create += ["--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(create, check=True, cwd=folder, env=environment({}), user=user, stdout=subprocess.DEVNULL)
        command = ["postgres", "-D", "data", "-p", str(port), "-k", "", "-c", "fsync=off"]
        ready = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]

        def answers() -> bool:
            return subprocess.run(ready, check=False, env=environment({})).returncode == 0

        with running(command, answers, folder, {}, user):
            yield


@contextmanager
def served(folder: Path) -> Iterator[Document]:
    """Do what the document says: create the databases, the bucket and a user, and start the server."""
    document = Document()
    (folder / "auth.ini").write_text(document.file("[mlflow]"))
    settings = document.exports("createdb")
    store = f"http://127.0.0.1:{document.store}"
    simulated = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(document.store)]
    (server,) = document.lines("mlflow", "mlflow server")
    # Two workers fewer, and only local connections.
    changed = {"0.0.0.0": "127.0.0.1", "4": "2"}
    server = [changed.get(word, word) for word in server]

    def do(program: str, word: str, more: Mapping[str, str]) -> None:
        for line in document.lines(program, word):
            subprocess.run(line, check=True, cwd=folder, env=environment(more))

    with (
        postgres(document.database, settings["PGPASSWORD"]),
        running(simulated, lambda: status(store) > 0, folder, settings),
    ):
        do("createdb", "createdb", settings)
        do("python", "createdb", settings)
        address = f"http://127.0.0.1:{document.server}"
        with running(server, lambda: status(f"{address}/health") == 200, folder, settings):
            do("python", "create_user", document.exports("create_user"))
            yield document


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as document:
        sys.exit(subprocess.run(sys.argv[1:], env=environment(document.member()), check=False).returncode)
