import subprocess
import sys

import pytest

from llmtrack.errors import UsageError
from llmtrack.models.source import ModelSource, missing_path, parse_candidates
from llmtrack.spec.scenario import DEFAULT_MODEL


@pytest.mark.parametrize(
    ("spec", "kind", "location"),
    [
        ("gpt2", "hub", "gpt2"),
        ("HuggingFaceTB/SmolLM2-135M", "hub", "HuggingFaceTB/SmolLM2-135M"),
        ("packaged:smollm2", "packaged", "smollm2"),
        ("Synthetic:Tiny", "synthetic", "tiny"),
    ],
)
def test_one_candidate(spec, kind, location):
    assert parse_candidates(f" {spec} ") == [ModelSource(kind, location, spec)]


def test_existing_paths(tmp_path, monkeypatch):
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "a, b").mkdir()
    (tmp_path / "x.GGUF").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spec in ("org/model", "./org/model", "~/org/model", str(tmp_path / "org/model"), "a, b"):
        (source,) = parse_candidates(spec)
        assert source.kind == "folder"
        assert missing_path(source) is None
    assert parse_candidates("x.GGUF")[0].kind == "gguf"


def test_a_list_keeps_its_order_without_duplicates():
    sources = parse_candidates("gpt2, packaged:smollm2 ,gpt2,synthetic:tiny")
    assert [source.spec for source in sources] == ["gpt2", "packaged:smollm2", "synthetic:tiny"]
    assert [source.kind for source in parse_candidates(DEFAULT_MODEL)] == ["packaged", "synthetic"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "is empty"),
        (" , ", "is empty"),
        ("gpt2,,gpt2", "extra comma"),
        ("packaged:smolm2", "did you mean smollm2?"),
        ("packaged:", "known are smollm2"),
        ("synthetic:lama-8b", "did you mean llama-8b"),
        ("synthetic:zzzz", "known are tiny, "),
        ("sintetic:tiny", "did you mean synthetic?"),
        ("./nowhere", "does not exist"),
        ("/nowhere/at/all", "does not exist"),
        ("~/nowhere-at-all", "does not exist"),
        ("some\\windows\\path", "does not exist"),
        ("C:\\models\\x", "does not exist"),
        ("a/b/c", "does not exist"),
        ("nowhere.gguf", "does not exist"),
        ("two words", "valid hub id"),
        ("org/--x", "valid hub id"),
        ("x" * 5000, "valid hub id"),
        ("a\0b", "valid hub id"),
    ],
)
def test_an_invalid_spec_is_one_line_with_the_reason(spec, reason):
    with pytest.raises(UsageError, match=reason.replace("?", r"\?")) as caught:
        parse_candidates(spec)
    assert "\n" not in str(caught.value)


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "weights.bin").touch()
    with pytest.raises(UsageError, match="is a file and not a model folder"):
        parse_candidates(str(tmp_path / "weights.bin"))


def test_a_missing_path_in_a_list_is_accepted():
    assert [source.kind for source in parse_candidates("/nowhere,synthetic:tiny")] == ["folder", "synthetic"]


def test_parsing_imports_no_heavy_library():
    code = "import sys, llmtrack.models.source; print({'torch', 'transformers', 'mlflow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
