"""Code that comes with a model never runs, wherever it is planted and whatever the backend; every place is known."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest

from llmtrack.convert import conversion, genai, openvino
from llmtrack.convert.environment import isolated_variables
from llmtrack.engines.registry import load_engine
from llmtrack.engines.text import chat_text, generate_texts
from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.host.packages import available
from llmtrack.host.transformers_compat import custom_code_refused
from llmtrack.models import folder as folders
from llmtrack.models.source import run_folder
from tests.conftest import make_here
from tests.engines.stand_ins import genai_converted, openvino_converted
from tests.export_cache import cache_exports
from tests.forking import fork
from tests.models.folders import edit, load
from tests.models.gguf_writer import write_gguf
from tests.models.planted import Payload, plant

pytestmark = pytest.mark.usefixtures("cache")
RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def cache(own_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def mark(tmp_path):
    """A path that exists as soon as any planted code has run."""
    path = tmp_path / "ran"
    yield path
    assert not path.exists(), f"ran: {sorted(file.name for file in path.iterdir())}"
    assert not [name for name in sys.modules if name.startswith("transformers_modules.")]


@pytest.fixture
def planted(folder, mark):
    plant(folder, mark)
    return folder


def as_folder(planted, tmp_path, monkeypatch):
    return str(planted)


def as_checkpoint(planted, tmp_path, monkeypatch):
    """A checkpoint downloaded from a shared server."""
    shutil.copytree(planted, run_folder(RUN, "checkpoint"))
    return f"runs:/{RUN}/checkpoint"


def as_snapshot(planted, tmp_path, monkeypatch):
    """A hub model that another program has downloaded."""
    commit = "0" * 40
    snapshots = tmp_path / "hub" / "models--org--name" / "snapshots"
    shutil.copytree(planted, snapshots / commit)
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda *args, **kwargs: str(snapshots / commit / "config.json"),
    )
    return "org/name"


@pytest.mark.slow(1)
@pytest.mark.parametrize("source", [as_folder, as_checkpoint, as_snapshot])
def test_code_of_a_model_does_not_run_from_any_source(planted, tmp_path, monkeypatch, source):
    engine = load_engine(source(planted, tmp_path, monkeypatch), device="cpu")
    assert engine.info.facts["trust_remote_code"] is False
    assert len(generate_texts(engine, ["once"], 2)) == 1
    with pytest.raises(UsageError, match="the chat template rejects"):
        chat_text(engine, [{"role": "user", "content": "hello"}])


BACKENDS = {
    "onnx": (),
    "genai": (conversion, "convert_folder", genai_converted),
    "openvino": (conversion, "convert_folder", openvino_converted),
    "llamacpp": (),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.slow(3)
def test_code_of_a_model_does_not_run_with_any_backend(planted, monkeypatch, tmp_path_factory, backend):
    if not available(backend, "any"):
        pytest.skip(f"the {backend} backend is not installed")
    if BACKENDS[backend]:
        monkeypatch.setattr(*BACKENDS[backend])
        cache_exports(monkeypatch, tmp_path_factory)
    if backend == "onnx":
        make_here(monkeypatch)
    engine = load_engine(str(planted), backend=backend, device="cpu")
    assert engine.info.facts["trust_remote_code"] is False
    assert len(generate_texts(engine, ["once"], 2)) == 1


@pytest.mark.parametrize("converter", [genai.CONVERTER, openvino.CONVERTER], ids=lambda converter: converter.backend)
@pytest.mark.slow(60)
@pytest.mark.usefixtures("users_environments")
def test_code_of_a_model_does_not_run_in_a_converter(planted, tmp_path, converter):
    if not converter.environment.is_complete:
        pytest.skip("its build environment does not exist")
    target = tmp_path / "converted"
    target.mkdir()
    source = folders.model_folder(str(planted))
    command = converter.command(source.path, target, converter.unquantized)
    converter.environment.run("converting", command, target)
    assert next(target.glob("*.xml"), None) or next(target.glob("*.onnx"), None)


def test_a_model_class_defined_by_its_own_code_is_refused(folder, mark):
    plant(folder, mark, model_type="evil")
    with pytest.raises(ModelLoadError, match="needs code from its own repository, which llmtrack never runs"):
        load(folder)


def test_a_tokenizer_class_defined_by_its_own_code_is_refused(planted):
    edit(planted / "tokenizer_config.json", tokenizer_class="EvilTokenizer")
    (planted / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError):
        load(planted)


def test_a_pickle_does_not_run(planted, mark):
    (planted / "model.safetensors").unlink()
    (planted / "pytorch_model.bin").write_bytes(pickle.dumps({"lm_head.weight": Payload(mark)}))
    with pytest.raises(ModelLoadError, match="which llmtrack never runs"):
        load(planted)


@pytest.mark.slow(1)
@pytest.mark.parametrize("pre", ["smollm", "something-new"])
def test_code_beside_a_gguf_file_does_not_run(planted, mark, pre):
    template = "{{ cycler.__init__.__globals__.os.mkdir('" + str(mark) + "') }}"
    path = write_gguf(planted / "x.gguf", pre, add_chat_template=template)
    engine = load_engine(str(path), device="cpu")
    with pytest.raises(UsageError, match="the chat template rejects"):
        chat_text(engine, [{"role": "user", "content": "hello"}])


LOAD_WITH_CODE = """
import contextlib
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
for auto in (AutoConfig, AutoModelForCausalLM, AutoTokenizer):
    with contextlib.suppress(Exception):
        auto.from_pretrained(folder, trust_remote_code=True)
"""


def test_code_does_not_run_even_with_trust_remote_code(planted, tmp_path, monkeypatch):
    """The second line of defence: no module of a model can be loaded at all."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with custom_code_refused():
        exec(LOAD_WITH_CODE, {"folder": str(planted)})


# What reads the environment when it is imported.
READERS = (
    "huggingface_hub.constants",
    "transformers.utils.hub",
    "transformers.utils",
    "transformers.dynamic_module_utils",
)


def test_code_does_not_run_in_the_environment_of_a_converter_even_with_trust_remote_code(planted):
    def load() -> None:
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(planted.parent)
        sys.path.insert(0, "")
        for name in READERS:
            importlib.reload(sys.modules[name])
        exec(LOAD_WITH_CODE, {"folder": str(planted)})

    variables = isolated_variables()
    # A new process would import transformers for many seconds.
    assert os.waitpid(fork(load, ()), 0)[1] == 0


def test_the_hook_is_removed():
    from transformers import dynamic_module_utils
    from transformers.generation import GenerationMixin

    before = (dynamic_module_utils.get_class_in_module, GenerationMixin.load_custom_generate)
    with custom_code_refused():
        assert before[0] is not dynamic_module_utils.get_class_in_module
        assert before[1] is not GenerationMixin.load_custom_generate
    assert before == (dynamic_module_utils.get_class_in_module, GenerationMixin.load_custom_generate)


# Where transformers 4.57 and 5 run, unpickle or download code. Add a place only if it is unreachable for a causal language
# model: by a view of its folder, or by `custom_code_refused`.
KNOWN_PLACES = {
    "data/datasets/": "texts of transformers' own trainer",
    "dynamic_module_utils.py": "all code of a model passes here; refused by custom_code_refused",
    "generation/utils.py": "load_custom_generate; refused by custom_code_refused",
    "integrations/gguf/": "kernels for packed GGUF files, which are converted before transformers sees them",
    "integrations/hub_kernels.py": "attn_implementation of the form org/name, which is in no view",
    "integrations/integration_utils.py": "callbacks of a training by transformers' own trainer",
    "integrations/msa_attention.py": "attn_implementation of the form org/name, which is in no view",
    "modeling_utils.py": "calls load_custom_generate",
    "models/auto/": "ends in dynamic_module_utils",
    "models/bloom/tokenization_bloom_fast.py": "unpickles its own pickle",
    "models/cohere/tokenization_cohere_fast.py": "unpickles its own pickle",
    "models/deprecated/": "pickles, which are in no view",
    "models/rag/": "not a causal language model",
    "pipelines/__init__.py": "llmtrack creates no pipeline",
    "utils/import_utils.py": "transformers' own modules, and kernels of fixed names",
}
CODE = re.compile(
    r"\b(get_class_in_module|get_class_from_dynamic_module|exec_module|load_custom_generate|pickle\.loads?|run_path"
    # A kernel of a fixed name is transformers' choice, not a model's.
    r"|get_kernel(?!\(\s*\"kernels-community/|\(\s*\"ggml-org/))\("
)
# A part of each call, to search thousands of files for seconds less.
PARTS = (b"get_class_", b"exec_module", b"load_custom_generate", b"pickle.load", b"run_path", b"get_kernel")


@pytest.mark.slow(2)
def test_every_place_where_transformers_runs_code_is_known():
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    contents = {path: path.read_bytes() for path in root.rglob("*.py") if not path.name.startswith("convert_")}
    places = {
        path.relative_to(root).as_posix()
        for path, content in contents.items()
        if any(part in content for part in PARTS) and CODE.search(content.decode("utf-8", errors="replace"))
    }
    assert "dynamic_module_utils.py" in places
    assert {name for name in places if not name.startswith(tuple(KNOWN_PLACES))} == set()
