"""A model folder with code planted wherever a library might look for some; whatever runs leaves its name in a file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

from tests.models.folders import edit

AUTO_CLASSES = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor")
# Modules that libraries import from a folder, or that Python itself does.
MODULES = (
    "evil.py",
    "modeling_llama.py",
    "configuration_llama.py",
    "tokenization_llama.py",
    "tokenizer.py",
    "generate.py",
    "pipeline.py",
    "handler.py",
    "setup.py",
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "__init__.py",
    "custom_generate/generate.py",
    "custom_generate/__init__.py",
)
PICKLES = (
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "vocab.pkl",
    "tokenizer.pkl",
    "dict.bin",
)
# A template that leaves the sandbox, if there were none.
ESCAPE = "{{ cycler.__init__.__globals__.os.system('touch MARK') }}"


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def plant(folder: Path, mark: Path, model_type: str = "llama") -> None:
    """Plant code in a folder.

    Args:
        folder: a whole model.
        mark: a path that is there afterwards if any of it has run.
        model_type: one that transformers knows, or one that only the planted code defines.
    """
    for name in MODULES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(
            f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\nopen(os.path.join({str(mark)!r}, {name.replace('/', '-')!r}), 'w').close()\n"
            "class C: pass\ndef generate(*given, **named): raise SystemExit('code of the folder ran')\n"
        )
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))
    classes = dict.fromkeys(AUTO_CLASSES, "evil.C")
    code = {
        "auto_map": classes,
        "custom_pipelines": {"text-generation": {"impl": "evil.C", "pt": ["AutoModelForCausalLM"]}},
        "trust_remote_code": True,
        "attn_implementation": "evil/kernel",
        "_attn_implementation_internal": "evil/kernel:f",
    }
    edit(folder / "config.json", model_type=model_type, **code)
    edit(folder / "generation_config.json", custom_generate=str(folder), trust_remote_code=True)
    edit(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.C", "evil.C"]},
        chat_template=ESCAPE.replace("MARK", str(mark)),
    )
    for name in ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(code))
    (folder / "genai_config.json").write_text(
        json.dumps({"model": {"decoder": {"session_options": {"custom_ops_library": "evil.so"}}}})
    )
    (folder / "evil.so").write_bytes(b"\x7fELF")
    (folder / "custom_generate" / "requirements.txt").write_text("evil\n")
