"""Plant code in a model folder wherever a library might look for it; whatever runs leaves its name in a file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

from tests.models.folders import edit

AUTO_CLASSES = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor")
# Modules that libraries or Python itself import from a folder.
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
# A template that escapes if there is no sandbox.
ESCAPE = "{{ cycler.__init__.__globals__.os.system('touch MARK') }}"


class Payload:
    """Runs when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def plant(folder: Path, mark: Path, model_type: str = "llama") -> None:
    """Plant code in a model folder.

    Args:
        mark: a path that exists afterwards if any code has run.
        model_type: known to transformers, or defined by the planted code only.
    """
    for name in MODULES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(
            f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\nopen(os.path.join({str(mark)!r}, {name.replace('/', '-')!r}), 'w').close()\n"
            "class C: pass\ndef generate(*args, **kwargs): raise SystemExit('code of the folder ran')\n"
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
