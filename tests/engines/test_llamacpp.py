"""llama.cpp: metadata of GGUF files, conversions, and results equal to PyTorch's."""

from __future__ import annotations

import io
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import llama
from llmtrack import load_engine
from llmtrack.engine import GenerateRequest
from llmtrack.engines import llamacpp_probe
from llmtrack.errors import MissingDependencyError, ScenarioError, UsageError
from llmtrack.host import packages as installed
from llmtrack.host.packages import available, install_command
from llmtrack.llamacpp import decoder, library
from llmtrack.llamacpp.decoder import Capacity
from llmtrack.models import gguf_conversion
from llmtrack.models.gguf_file import GgufFacts, cached_values, file_type, read_facts, step_bytes
from llmtrack.models.load import identify_model
from llmtrack.quantize import gguf as conversion
from llmtrack.quantize.recipe import recipes
from llmtrack.spec.scenario import Variant
from llmtrack.tensors.padding import pad_rows
from tests.engines.stand_ins import NO_LLAMACPP
from tests.models.gguf_writer import BEGIN, END, HEADS, LAYERS, VOCABULARY, WIDTH, write_gguf


def needs_llamacpp(test):
    return pytest.mark.slow(1)(pytest.mark.skipif(not available("llamacpp"), reason=NO_LLAMACPP)(test))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "a model.gguf", add_file_type=0)


# Metadata of a file.


def test_a_step_reads_all_but_lookup_tables_and_idle_experts():
    sizes = {"token_embd.weight": 1000, "blk.0.attn_q.weight": 10, "output_norm.weight": 1}
    assert step_bytes(sizes, 0, 0) == 1011, "a tied table is the head, which is read"
    assert step_bytes({**sizes, "output.weight": 600}, 0, 0) == 611
    experts = {"blk.0.ffn_up_exps.weight": 800, "blk.0.ffn_gate_inp.weight": 5}
    assert step_bytes({**sizes, **experts}, 8, 2) == 1011 + 200 + 5


@pytest.mark.parametrize(
    ("metadata", "values"),
    [
        # Heads of 576 / 9 = 64; 30 layers of 3 heads, a key and a value each.
        (
            {"block_count": 30, "embedding_length": 576, "attention.head_count": 9, "attention.head_count_kv": 3},
            30 * 3 * 128,
        ),
        # Every head has its own keys by default.
        ({"block_count": 2, "embedding_length": 64, "attention.head_count": 4}, 2 * 4 * 32),
        # Lengths of keys and values, and layers without attention.
        (
            {
                "block_count": 3,
                "embedding_length": 64,
                "attention.head_count": [4, 0, 4],
                "attention.head_count_kv": [2, 0, 1],
                "attention.key_length": 24,
                "attention.value_length": 8,
            },
            3 * 32,
        ),
        ({"block_count": 4, "embedding_length": 64}, 0),
    ],
)
def test_cached_values_follow_from_the_metadata(metadata, values):
    assert cached_values(metadata) == values


def test_bytes_of_the_cache_by_type():
    assert [round(11520 * library.CACHE_TYPES[kind]) for kind in ("f32", "f16", "q8_0")] == [46080, 23040, 12240]


@pytest.mark.parametrize(
    ("file_type_id", "types", "label"),
    [
        (3, {"Q4_1": 90, "F32": 5, "Q6_K": 3}, "Q4_1"),
        (15, {"Q4_K": 60, "Q6_K": 40}, "Q4_K_M"),
        (15, {"Q5_0": 60, "Q4_K": 40}, "Q4_K_M (mostly Q5_0)"),
        (0, {"F32": 1}, "F32"),
        (1, {"F16": 9, "F32": 1}, "F16"),
        (None, {"F16": 9, "F32": 1}, "F16"),
        (9999, {"Q8_0": 9}, "Q8_0"),
    ],
)
def test_the_label_is_the_files_own_unless_most_weights_differ(file_type_id, types, label):
    assert file_type(file_type_id, types) == label


def test_facts_of_a_file(file):
    parameters = 2 * len(VOCABULARY) * WIDTH + LAYERS * (4 * WIDTH**2 + 3 * 128 * WIDTH + 2 * WIDTH) + WIDTH
    assert read_facts(file) == GgufFacts("llama", "F32", 4 * (parameters - len(VOCABULARY) * WIDTH), LAYERS * 2 * WIDTH)
    assert HEADS == 2


@pytest.mark.slow(1)
def test_a_file_and_its_conversion_have_equal_digests(file):
    described, converted = identify_model(str(file), as_gguf=True), identify_model(str(file))
    assert described.gguf == file
    assert described.folder is not None
    assert not list(described.folder.glob("*.safetensors"))
    assert described.digests == converted.digests, "results of both are comparable"


def test_a_model_unknown_to_transformers_keeps_its_special_ids(file, monkeypatch):
    from transformers import AutoConfig

    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: (_ for _ in ()).throw(ValueError("new")))
    folder = gguf_conversion.describe(file)
    from llmtrack.models.digests import config_digest

    assert config_digest(folder) != "none"
    assert f'"eos_token_id": {END}' in (folder / "generation_config.json").read_text()
    assert f'"vocab_size": {len(VOCABULARY)}' in (folder / "config.json").read_text()


def test_other_models_have_no_gguf_file(file):
    assert identify_model("synthetic:tiny", as_gguf=True).gguf is None


# Rejections and conversions.


def test_a_missing_installation_is_reported_with_the_command(monkeypatch):
    for module in ("llama_cpp", "llama_cpp_py_sync"):
        monkeypatch.setitem(sys.modules, module, None)
    library.library.cache_clear()
    with pytest.raises(MissingDependencyError) as caught:
        load_engine("synthetic:tiny", backend="llamacpp", device="cpu")
    library.library.cache_clear()
    assert install_command("llamacpp") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("packages", "platform", "glibc", "expected"),
    [
        ({"llama_cpp"}, "linux", "glibc 2.17", True),
        ({"llama_cpp_py_sync"}, "linux", "glibc 2.38", True),
        ({"llama_cpp_py_sync"}, "linux", "glibc 2.41", True),
        ({"llama_cpp_py_sync"}, "linux", "glibc 2.36", False),
        ({"llama_cpp_py_sync"}, "linux", None, False),
        ({"llama_cpp_py_sync"}, "darwin", None, True),
        (set(), "linux", "glibc 2.41", False),
    ],
)
def test_a_prebuilt_library_is_used_if_the_system_can_load_it(monkeypatch, packages, platform, glibc, expected):
    monkeypatch.setattr(installed, "find_spec", lambda name: name if name in packages else None)
    monkeypatch.setattr(installed.sys, "platform", platform)
    monkeypatch.setattr(installed.os, "confstr", lambda name: glibc, raising=False)
    assert available("llamacpp") is expected


def test_without_the_converters_package_the_error_asks_for_a_file(monkeypatch):
    monkeypatch.setattr(conversion, "installed_version", lambda package: "")
    with pytest.raises(MissingDependencyError, match=r"comes with llama-cpp-python.*give a \.gguf file"):
        conversion.converter()


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"device": "cuda"}, UsageError), ({"dtype": "bfloat16"}, ScenarioError), ({"quantization": "q9"}, UsageError)],
)
def test_unsupported_settings_are_rejected_before_a_conversion(changes, error):
    from llmtrack.engines.llamacpp import load

    if "quantization" in changes and not available("llamacpp"):
        pytest.skip("llama.cpp is not installed, which is reported first")
    with pytest.raises(error) as caught:
        load(replace(Variant("synthetic:tiny", backend="llamacpp", device="cpu"), **changes))
    assert "\n" not in str(caught.value)


def test_options_that_llamacpp_would_change_are_rejected():
    options = (("cache_type", "q8_0"), ("flash_attention", "off"))
    from llmtrack.engines.options import LlamacppOptions
    from llmtrack.spec.options import chosen

    with pytest.raises(UsageError, match="cache_type=q8_0 needs"):
        chosen(LlamacppOptions, options)
    assert chosen(LlamacppOptions, options[:1]).cache_type == "q8_0"


def test_a_failed_download_of_the_converter_is_reported_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    monkeypatch.setattr(conversion, "installed_version", lambda _: "0.0.0")
    monkeypatch.setattr(
        conversion,
        "download_command",
        lambda *_, **__: [sys.executable, "-c", "raise SystemExit('ERROR: no such version')"],
    )
    with pytest.raises(MissingDependencyError, match=r"no such version.*give a \.gguf file"):
        conversion.converter()


def test_only_the_converter_is_unpacked(tmp_path):
    top = "llama_cpp_python-1.0/vendor/llama.cpp"
    names = {
        f"{top}/convert_hf_to_gguf.py": True,
        f"{top}/conversion/base.py": True,
        f"{top}/gguf-py/gguf/constants.py": True,
        f"{top}/src/llama.cpp": False,
        f"{top}/conversion/../../evil.py": False,
        "llama_cpp_python-1.0/setup.py": False,
    }
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"#"))
    conversion.unpack(tmp_path / "a.tar.gz", tmp_path / "tool")
    unpacked = {path.relative_to(tmp_path / "tool").as_posix() for path in (tmp_path / "tool").rglob("*.py")}
    assert unpacked == {name.removeprefix(f"{top}/") for name, expected in names.items() if expected}
    assert not list(tmp_path.rglob("evil.py"))


def test_a_context_serves_requests_within_its_capacity():
    capacity = Capacity(4, 512, 2048, 4)
    assert capacity.holds(Capacity(1, 512, 512, 1))
    assert not capacity.holds(Capacity(5, 256, 1280, 5))
    assert capacity.union(Capacity(8, 256, 2048, 300)) == Capacity(8, 512, 2048, 300)


def test_recipes():
    assert [recipe.name for recipe in recipes() if recipe.backend == "llamacpp"] == ["f16", "q8_0", "q4_k_m"]


def test_llama_bench_output_is_parsed():
    command = llama.bench_arguments(Path("llama-bench"), Path("a.gguf"), 2, 256, 32)
    assert [arguments[-4:] for arguments in command] == [["-p", "256", "-n", "0"], ["-n", "32", "-d", "256"]]
    assert llama.speed_of('[{"n_prompt": 256, "avg_ts": 174.5}]') == 174.5


def dies(signal: int) -> None:
    import os

    os.kill(os.getpid(), signal)


@needs_llamacpp
def test_a_library_that_kills_the_process_is_detected(file, monkeypatch):
    import signal

    monkeypatch.setattr(
        llamacpp_probe, "run_isolated", lambda action, work, path: real(action, dies, int(signal.SIGILL))
    )
    from llmtrack.host.isolated import run_isolated as real

    with pytest.raises(
        ScenarioError, match=r"cannot run a model\.gguf here: .*SIGILL.*compiled for .*pip install "
    ) as caught:
        llamacpp_probe.try_once(file)
    assert caught.value.kind == "unsupported"
    monkeypatch.undo()


# Results.


@pytest.fixture
def engine(file):
    engine = load_engine(str(file), backend="llamacpp", device="cpu", threads=2, cache_type="f32")
    yield engine
    engine.close()


ROWS = tuple(tuple(range(1, 1 + length)) for length in (5, 9, 3))


@needs_llamacpp
def test_logits_equal_pytorchs(engine, file):
    reference = load_engine(str(file), device="cpu")
    for row in ROWS:
        logits, expected = engine.next_token_logits(row), reference.next_token_logits(row)
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    batch = pad_rows(ROWS, 0, "left")
    torch.testing.assert_close(engine.score(*batch)[0], reference.score(*batch)[0], rtol=1e-4, atol=1e-4)
    request = GenerateRequest(ROWS, 6)
    assert engine.generate(request, lambda: None) == reference.generate(request, lambda: None)


@needs_llamacpp
def test_info_reports_the_settings_in_use(engine, file):
    info = engine.info
    assert (info.dtype_label, info.file_size_bytes) == ("F32", file.stat().st_size)
    assert info.facts["weights_format"] == "gguf"
    assert {name: info.facts[name] for name in ("threads", "cache_type", "flash_attention", "ubatch")} == {
        "threads": 2,
        "cache_type": "f32",
        "flash_attention": "auto",
        "ubatch": 512,
    }
    assert not info.pads
    assert info.kv_bytes_per_token == 4 * LAYERS * 2 * WIDTH
    assert info.tags["weights_digest"].startswith("gguf:")
    assert info.special_tokens.bos_id == BEGIN


@needs_llamacpp
def test_scoring_in_parts_equals_scoring_at_once(engine, monkeypatch):
    row = list(range(1, 40))
    logits = engine.next_token_logits(row)
    sums = engine.score(*pad_rows([row], 0, "right"))[0]
    monkeypatch.setattr(decoder, "_CHUNK_BYTES", 4 * len(VOCABULARY) * 7)
    assert [len(part) for part in engine._decoder.logits(row)] == [7, 7, 7, 7, 7, 4]
    torch.testing.assert_close(engine.next_token_logits(row), logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(engine.score(*pad_rows([row], 0, "right"))[0], sums, rtol=1e-6, atol=1e-6)


@needs_llamacpp
def test_right_padding_of_unequal_rows_is_rejected(engine):
    with pytest.raises(ScenarioError, match="padding_side=left") as caught:
        engine.generate(GenerateRequest(ROWS, 2, padding_side="right"), lambda: None)
    assert caught.value.kind == "unsupported"


@needs_llamacpp
def test_more_rows_than_llamacpp_supports_are_rejected(engine):
    with pytest.raises(ScenarioError, match="256 sequences") as caught:
        engine.generate(GenerateRequest(((1,),) * 257, 1), lambda: None)
    assert caught.value.kind == "unsupported"


@needs_llamacpp
def test_a_broken_file_is_rejected_in_one_line(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(ScenarioError) as caught:
        decoder.LlamaDecoder(path, threads=1)
    assert "\n" not in str(caught.value)
