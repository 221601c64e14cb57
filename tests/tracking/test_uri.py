"""Tracking URIs are made absolute, and invalid ones refused with the correct form."""

import pytest

from llmtrack.errors import UsageError
from llmtrack.tracking.uri import resolve_tracking_uri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:///a.db", "sqlite:///{cwd}/a.db"),
        ("sqlite:///sub/a.db?timeout=5", "sqlite:///{cwd}/sub/a.db?timeout=5"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db"),
        ("a.db", "sqlite:///{cwd}/a.db"),
        ("http://host:5000", "http://host:5000"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("databricks", "databricks"),
    ],
)
def test_a_resolved_uri_does_not_depend_on_the_working_directory(uri, expected, tmp_path):
    assert resolve_tracking_uri(uri) == expected.format(cwd=tmp_path)


def test_the_default_is_the_environment_and_then_the_working_directory(tmp_path, monkeypatch):
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/other.db"


@pytest.mark.parametrize("uri", ["mlruns", "./mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:"])
def test_folders_and_in_memory_databases_are_refused(uri):
    with pytest.raises(UsageError, match="tracking URI"):
        resolve_tracking_uri(uri)


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("sqlite://mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:mlflow.db", "sqlite:///mlflow.db"),
        ("http://", "http://HOST:PORT"),
        ("http:localhost:5000", "http://HOST:PORT"),
        ("http://localhost:port", "http://HOST:PORT"),
        ("https://localhost:99999", "https://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://me:geheim@:5000", "http://HOST:PORT"),
    ],
)
def test_an_invalid_address_is_refused_with_the_correct_form(uri, remedy):
    with pytest.raises(UsageError, match=remedy) as caught:
        resolve_tracking_uri(uri)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("uri", ["http://localhost", "https://me:pw@[::1]:5000/path", "postgresql://h/d"])
def test_an_address_is_unchanged(uri):
    assert resolve_tracking_uri(uri) == uri
