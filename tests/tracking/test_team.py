"""Execute docs/team.md: PostgreSQL, artifacts proxied to an S3-compatible store, passwords, allowed hosts, 16 writers."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT
from tests.tracking import team_server
from tests.tracking.team_server import MISSING, PROGRAMS, Document, environment, status

pytestmark = [
    pytest.mark.slow(50),
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL's initdb is not here: apt install postgresql"),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)}: pip install 'mlflow[auth]' psycopg2-binary boto3 'moto[server]'",
    ),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Document]:
    with team_server.served(tmp_path_factory.mktemp("team")) as document:
        yield document


def test_only_known_hosts_and_users_are_answered(served: Document):
    url = f"http://127.0.0.1:{served.server}/api/2.0/mlflow/experiments/get?experiment_id=0"
    member = served.member()
    user = f"{member['MLFLOW_TRACKING_USERNAME']}:{member['MLFLOW_TRACKING_PASSWORD']}"
    assert status(url, f"tracking.example:{served.server}", user) == 200
    assert status(url, "elsewhere.example", user) == 403
    assert status(url) == 401
    assert status(url, None, f"{user} and more") == 401


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install llmtrack[ray]")
def test_measurements_of_ray_nodes_are_tracked_once_by_the_driver(served: Document):
    member = served.member()
    (command,) = (line for line in served.lines("python", "benchmarks.team") if "--nodes" in line)
    smaller = ["--nodes", "2", "--scenarios", "24"]
    done = subprocess.run([*command, *smaller], env=environment(member), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a sweep on 2 Ray nodes tracked 25 runs" in done.stdout


def test_sixteen_processes_track_at_once_and_each_run_arrives_once(served: Document):
    member = served.member()
    (command,) = (line for line in served.lines("python", "benchmarks.team") if "--nodes" not in line)
    done = subprocess.run(
        [*command, "--scenarios", "2"], env=environment(member), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "16 processes tracked 48 runs" in done.stdout
    keys = served.exports("createdb")
    import boto3

    store = boto3.client(
        "s3",
        endpoint_url=keys["MLFLOW_S3_ENDPOINT_URL"],
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        region_name=keys["AWS_DEFAULT_REGION"],
    )
    files = [item["Key"] for item in store.list_objects_v2(Bucket="llmtrack")["Contents"]]
    assert sum(name.endswith("/sample.txt") for name in files) == 32, "they are in the bucket"
    assert sum(name.endswith("/table.md") for name in files) == 16
