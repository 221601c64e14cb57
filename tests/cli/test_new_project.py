"""`llmtrack init` writes a project, names the next command, and reports an unwritable folder in one line."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmtrack.cli import main, new_project
from llmtrack.errors import UsageError


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Use the project files of the checkout as those of a wheel."""
    monkeypatch.setattr(new_project, "PROJECT", Path(new_project.__file__).parents[2])


def test_a_project_is_written_once(tmp_path):
    written = new_project.write_project(tmp_path / "new" / "one")
    assert {path.name for path in written} == {"MLproject", "conda.yaml", new_project.CORPUS}
    with pytest.raises(UsageError, match=r"has MLproject, conda\.yaml, texts\.jsonl already"):
        new_project.write_project(tmp_path / "new" / "one")


@pytest.mark.parametrize("folder", ["a" * 5_000, "file/below"])
def test_an_unwritable_folder_is_reported(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"the folder cannot be written \(.+\): choose another one"):
        new_project.write_project(tmp_path / folder)


@pytest.mark.parametrize("name", ["project", "a project", "it's"])
def test_the_next_command_names_the_folder_as_a_shell_reads_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["init", name])
    assert result.exit_code == 0, result.output
    command = result.output.splitlines()[-1].removeprefix("Next: ")
    assert shlex.split(command) == ["mlflow", "run", name, "-e", "baseline", "--env-manager", "local"]
