import hashlib
import shutil
import threading

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.models import hub
from tests.conftest import HANG_S
from tests.models.folders import load

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_caches(own_cache, tmp_path, monkeypatch):
    # huggingface_hub reads the variable when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ConnectionError("no network in this test")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)


@pytest.fixture
def cached(own_caches, tiny_model_dir):
    repo = own_caches / "models--org--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(SHA)
    return shutil.copytree(tiny_model_dir, repo / "snapshots" / SHA)


def test_a_cached_model_needs_no_network(cached, no_network):
    loaded = load("org/tiny")
    assert (loaded.model_id, loaded.revision) == ("org/tiny", SHA)
    assert load("org/tiny", revision=SHA).revision == SHA


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_cached_file_is_refused(cached, no_network, name):
    content = (cached / name).read_bytes()
    blob = cached.parents[1] / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    (cached / name).rename(blob)
    (cached / name).symlink_to(blob)
    assert load("org/tiny").digests.weights.startswith("safetensors:")
    blob.write_bytes(content[:-1] + b"x")
    with pytest.raises(ModelLoadError, match=f"cached {name} is damaged .*: delete .*{blob.name}"):
        load("org/tiny")


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_incomplete_cached_model_is_not_used(cached, no_network, missing):
    (cached / missing).unlink()
    with pytest.raises(ModelLoadError, match="org/tiny: it is not in the hub's local cache"):
        load("org/tiny")


@pytest.mark.parametrize("content", ["{half", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_of_a_cached_model_is_named(cached, no_network, content):
    (cached / "model.safetensors").rename(cached / "part.safetensors")
    (cached / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"org/tiny: model\.safetensors\.index\.json is damaged: fetch it again"):
        load("org/tiny")


def test_no_network_is_one_line_with_a_remedy(no_network):
    loaded = load("org/tiny,synthetic:tiny")
    assert loaded.warnings[0].startswith("passed over org/tiny: it is not in the hub's local cache")
    assert "check the network" in loaded.warnings[0]


def test_a_hub_that_never_answers_is_abandoned(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_args, **_kwargs: never.wait(HANG_S))
    monkeypatch.setattr(hub, "RESOLVE_SECONDS", 0.1)
    with pytest.raises(ModelLoadError, match="TimeoutError"):
        hub.snapshot("org/tiny")
    never.set()


def test_timeouts_keep_an_offline_start_short():
    assert hub.REQUEST_SECONDS <= hub.RESOLVE_SECONDS < 10


def test_all_files_come_from_the_commit_that_the_revision_resolved_to(monkeypatch, tiny_model_dir):
    class Info:
        sha = SHA
        siblings = ()

    request = {}

    def download(repo, **options):
        request.update(options, repo=repo)
        return str(tiny_model_dir)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_args, **_kwargs: Info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load("org/tiny", revision="v1").revision == SHA
    assert (request["repo"], request["revision"]) == ("org/tiny", SHA)


def test_weights_are_downloaded_in_one_format_without_code():
    names = ["config.json", "tokenizer.json", "modeling_x.py", "model.safetensors", "pytorch_model.bin"]
    assert hub.files_to_download(names) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert "pytorch_model.bin" in hub.files_to_download(["config.json", "pytorch_model.bin"])
    assert hub.files_to_download(["onnx/model.safetensors", "README.md"]) == []


def test_a_model_with_missing_shards_is_incomplete(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "m1", "b": "m2"}}')
    (tmp_path / "m1").touch()
    assert not hub.is_complete(tmp_path)
    (tmp_path / "m2").touch()
    assert hub.is_complete(tmp_path)
