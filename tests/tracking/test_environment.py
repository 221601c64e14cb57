import subprocess
import sys
from pathlib import Path

import pytest

from llmtrack.tracking import environment as module
from llmtrack.tracking.environment import environment, environment_id, environment_tags


@pytest.fixture(autouse=True)
def _fresh_cache():
    module._git.cache_clear()
    yield
    module._git.cache_clear()


def commit_in(folder: Path) -> str:
    for command in (
        ["init", "-q"],
        ["config", "user.email", "a@b"],
        ["config", "user.name", "a"],
        ["add", "."],
        ["commit", "-q", "-m", "First"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    return head.stdout.strip()


def test_facts_name_versions_cpu_and_memory_and_include_the_workers():
    facts = environment({"version.torch": "2.13.0", "threads": "2"})
    assert facts["version.torch"] == "2.13.0"
    assert facts["python_version"].count(".") == 2
    assert int(facts["cpu_available"]) >= 1
    assert float(facts["memory_gib"]) > 0
    assert all(isinstance(value, str) and value for value in facts.values())


def test_the_commit_is_that_of_the_program(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("1")
    commit = commit_in(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "program.py"), raising=False)
    assert (environment()["git_commit"], environment()["git_dirty"]) == (commit, "false")
    (tmp_path / "file").write_text("2")
    module._git.cache_clear()
    assert environment()["git_dirty"] == "true"


def test_the_users_repository_is_preferred_to_llmtracks_own(tmp_path, monkeypatch):
    theirs, models, own = (tmp_path / name for name in ("theirs", "models", "own"))
    for folder in (theirs, models, own):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    commits = {folder.name: commit_in(folder) for folder in (theirs, models, own)}
    subprocess.run(["git", "checkout", "-q", "-b", "main"], cwd=models, check=False)
    monkeypatch.setattr(module, "FOLDER", own)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    def commit(folder: Path, *model_folders: Path) -> str | None:
        monkeypatch.chdir(folder)
        module._git.cache_clear()
        facts = environment(None, model_folders)
        assert facts["llmtrack_git_commit"] == commits["own"]
        return facts.get("git_commit")

    assert commit(theirs) == commit(theirs, models / "file") == commits["theirs"]
    assert commit(own, models) == commit(own, models / "file") == commits["models"]
    assert commit(own) == commits["own"], "a developer of llmtrack is its user"
    assert commit(tmp_path, models) == commits["models"]
    assert commit(tmp_path) is None


def test_the_branch_is_the_checked_out_one_or_that_of_the_ci_server(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("1")
    commit_in(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "program.py"), raising=False)
    for name in module._BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def branch(*command: str) -> str | None:
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
        module._git.cache_clear()
        return environment().get("git_branch")

    assert branch("checkout", "-b", "feature/x") == "feature/x"
    assert branch("checkout", "--detach") is None
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert branch("status") == "main"
    monkeypatch.setenv("GITHUB_HEAD_REF", "pull")
    assert branch("status") == "pull"
    assert branch("checkout", "feature/x") == "feature/x"


def test_a_virtual_environment_does_not_belong_to_the_repository_around_it(tmp_path, monkeypatch):
    (tmp_path / ".gitignore").write_text(".venv/")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    commit = commit_in(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / ".venv/bin/tool"), raising=False)
    # The working folder itself would be the user's.
    monkeypatch.chdir(tmp_path / ".venv")
    assert environment().get("git_commit") != commit


def test_without_git_nothing_fails(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "git_commit" not in environment()


def test_the_id_depends_only_on_facts_that_affect_speed():
    facts = {"cpu": "A", "threads": "2", "git_commit": "abc", "git_dirty": "false", "llmtrack_version": "1"}
    same = {**facts, "git_commit": "def", "git_branch": "main", "git_dirty": "true", "llmtrack_version": "2"}
    same |= {"llmtrack_git_commit": "ghi", "llmtrack_git_dirty": "true"}
    assert environment_id(same) == environment_id(facts)
    assert environment_id({**facts, "threads": "4"}) != environment_id(facts)


def test_facts_become_tags():
    tags = environment_tags({"cpu": "A", "git_commit": "abc", "git_branch": "main"})
    assert tags["mlflow.source.git.branch"] == "main"
    assert tags["llmtrack.env.cpu"] == "A"
    assert tags["mlflow.source.git.commit"] == "abc"
    assert tags["llmtrack.environment_id"] == environment_id({"cpu": "A", "git_commit": "abc"})
