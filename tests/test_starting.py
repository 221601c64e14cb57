"""Where `llmtrack init` may not write, it says so in a line."""

from pathlib import Path

import pytest

from llmtrack import starting
from llmtrack.errors import UsageError


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """The project as a wheel brings it: the checkout has the same files."""
    monkeypatch.setattr(starting, "PROJECT", Path(starting.__file__).parents[1])


def test_a_project_is_written_once(tmp_path):
    written = starting.write_project(tmp_path / "new" / "one")
    assert {path.name for path in written} == {"MLproject", "conda.yaml", starting.CORPUS}
    with pytest.raises(UsageError, match=r"has MLproject, conda\.yaml, texts\.jsonl already"):
        starting.write_project(tmp_path / "new" / "one")


@pytest.mark.parametrize("folder", ["a" * 5_000, "file/below"])
def test_a_folder_that_cannot_be_written_is_said(tmp_path, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"the folder cannot be written \(.+\): choose another one"):
        starting.write_project(tmp_path / folder)
