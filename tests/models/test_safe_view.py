"""Libraries see only allow-listed files of a model folder, and no setting that refers to code."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.models.digests import model_digests
from llmtrack.models.load_errors import refuse_damaged
from llmtrack.models.safe_view import safe_view, visible_files
from tests.models.folders import edit
from tests.models.planted import plant

pytestmark = pytest.mark.usefixtures("own_cache")


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_view_contains_only_the_model(folder, tmp_path):
    before = files_in(folder)
    plant(folder, tmp_path / "ran")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    (folder / "additional_chat_templates" / "evil.py").write_text("")
    (folder / "tokenizer.model").mkdir()
    (folder / "vocab.pkl").write_bytes(b"")
    assert files_in(safe_view(folder)) == before | {"additional_chat_templates/tools.jinja"}


def test_only_references_to_code_are_removed_from_settings(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    digests = model_digests(folder)
    nested = {"auto_map": {}, "attn_implementation": {"": "org/kernel"}, "hidden_size": 4}
    edit(folder / "config.json", auto_map={"AutoConfig": "org/name--evil.C"}, attn_implementation="org/kernel")
    edit(folder / "config.json", experts_implementation="org/kernel:f", vision=[nested], note="a/b")
    clean = json.loads((safe_view(folder) / "config.json").read_text())
    assert clean == {**config, "vision": [{"hidden_size": 4}], "note": "a/b"}
    assert model_digests(safe_view(folder)).weights == digests.weights
    assert model_digests(safe_view(folder)).tokenizer == digests.tokenizer


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), OSError(errno.EMFILE, "too many open files")])
def test_temporarily_unreadable_settings_do_not_pass(folder, monkeypatch, name, error):
    edit(folder / name, auto_map={"AutoConfig": "evil.C"})
    original = Path.read_text

    def read_text(path, *args, **kwargs):
        if path == folder / name:
            raise error
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(
        ModelLoadError, match=rf"{name} cannot be read .*: change its permissions, or fetch the model again"
    ):
        safe_view(folder)
    with pytest.raises(ModelLoadError, match=f"{name} cannot be read"):
        refuse_damaged(folder)


@pytest.mark.parametrize("damage", ['{"auto_map": {}', "[" * 100_000])
def test_settings_that_another_parser_may_accept_do_not_pass(folder, damage):
    (folder / "config.json").write_text(damage)
    with pytest.raises(ModelLoadError, match=r"config\.json is damaged"):
        safe_view(folder)


@pytest.mark.parametrize("depth", [100, 900, 5_000, 50_000])
def test_code_in_deeply_nested_settings_does_not_pass(folder, depth):
    """The depth that can be parsed depends on the version of Python: deeper settings are refused."""
    (folder / "config.json").write_text(
        '{"a": ' + "[" * depth + '{"auto_map": {"AutoConfig": "evil.C"}}' + "]" * depth + "}"
    )
    try:
        config = (safe_view(folder) / "config.json").read_text()
    except ModelLoadError as error:
        assert "config.json is damaged" in str(error)  # noqa: PT017 - either is right
    else:
        assert "auto_map" not in config


def test_an_attention_of_transformers_is_kept(folder):
    edit(folder / "config.json", attn_implementation="eager")
    assert json.loads((safe_view(folder) / "config.json").read_text())["attn_implementation"] == "eager"


def test_a_view_is_cached_until_the_folder_or_the_view_changes(folder):
    first = safe_view(folder)
    assert safe_view(folder) == first
    (folder / "vocab.txt").write_text("a")
    second = safe_view(folder)
    assert second != first
    (second / "evil.py").write_text("")
    assert "evil.py" not in files_in(safe_view(folder))
    (second / "vocab.txt").unlink()
    (second / "vocab.txt").write_text("other")
    assert (safe_view(folder) / "vocab.txt").read_text() == "a"


def test_without_a_cache_views_are_temporary(folder, own_cache):
    own_cache.write_text("not a folder")
    assert (safe_view(folder) / "config.json").is_file()


@pytest.mark.parametrize("refused", ["symlink_to", "both"])
def test_without_links_the_view_is_a_copy(folder, monkeypatch, refused):
    def refuse(*args):
        raise OSError("not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    if refused == "both":
        monkeypatch.setattr(os, "link", refuse)
    view = safe_view(folder)
    assert files_in(view) == set(visible_files(folder))
    assert not any(path.is_symlink() for path in view.iterdir())
    assert safe_view(folder) == view


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors"])
def test_an_index_that_leaves_the_folder_is_refused(folder, name):
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelLoadError, match="outside of the folder"):
        safe_view(folder)


@pytest.mark.slow(3)
def test_every_tokenizer_file_of_causal_language_models_is_visible(folder):
    source = Path(__import__("transformers").__file__).parent / "models"
    pattern = re.compile(rb"VOCAB_FILES_NAMES\s*(?::[^=]+)?=\s*(\{[^}]*\})")
    names = {
        name
        for path in source.glob("*/tokenization_*.py")
        if "deprecated" not in path.parts
        for files in pattern.findall(path.read_bytes())
        for name in re.findall(r":\s*\"([^\"]+)\"", files.decode())
    }
    assert len(names) > 10
    for name in names:
        (folder / name).write_text("")
    # Of encoders and translators.
    others = {"byte_maps.json", "entity_vocab.json", "prophetnet.tokenizer", "target_vocab.json"}
    assert names - set(visible_files(folder)) <= others | {"word_pronunciation.json", "word_shape.json"}
