"""The recipes of the torch backend, in a process that has torchao."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from llmtrack.engines.registry import load_engine
from llmtrack.errors import MissingDependencyError
from tests.search_path import with_folders

# Apart from the environment, since transformers imports torchao at every start where it can, which takes seconds.
APART = Path(sys.prefix) / "torchao"

PROGRAM = """
import json
from llmtrack.host.transformers_compat import import_transformers
import_transformers()  # as a worker does
from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.quality.perplexity import score_documents

UNEQUAL = ((5, 17, 99), (7, 8), (3,), tuple(range(20, 40)), (400, 2, 31, 77, 12), (90, 91, 92, 93))
found = {}
for quantization in ("none", "int8-weight-only", "int8-dynamic"):
    engine = load_engine("synthetic:tiny", device="cpu", quantization=quantization)
    new = engine.generate(GenerateRequest(UNEQUAL, 4), lambda: None).new_ids
    loss = score_documents(engine, ["The harbour wakes before the town.", "By noon the crates are gone."]).loss
    found[quantization] = {"label": engine.info.dtype_label, "new": [len(row) for row in new], "warnings": engine.info.warnings, "loss": loss, "bytes": engine.info.model_size_bytes,
        "arithmetic": engine.info.arithmetic, "facts": engine.info.facts, "operations": engine.info.operations.per_token}

# What cards have alone is refused here, and computed all the same where torchao can: only the refusal is the card's.
from llmtrack.quantize import torchao as recipes
from llmtrack.models import synthetic
import torch
refused = {}
for quantization in ("int4-weight-only", "float8-weight-only", "float8-dynamic"):
    try:
        load_engine("synthetic:tiny", device="cpu", dtype="bfloat16", quantization=quantization)
    except Exception as error:
        refused[quantization] = str(error)
recipes.check_card = lambda *asked: None
engine = load_engine("synthetic:tiny", device="cpu", dtype="bfloat16", quantization="float8-weight-only")
float8 = {"label": engine.info.dtype_label, "bytes": engine.info.model_size_bytes,
          "loss": score_documents(engine, ["The harbour wakes before the town.", "By noon the crates are gone."]).loss}
odd = torch.nn.Sequential(torch.nn.Linear(20, 20))
try:
    recipes._apply(recipes._int4_weight_only, odd)
except Exception as error:
    refused["odd shapes"] = str(error)
print(json.dumps({"found": found, "refused": refused, "float8": float8}))
"""


@pytest.mark.slow(10)
@pytest.mark.skipif(
    not (APART.is_dir() or find_spec("torchao")),
    reason="torchao is an extra that is not installed here; `make test` installs it beside its environment",
)
def test_a_tiny_model_by_each_torchao_recipe():
    environment = os.environ | {"PYTHONPATH": with_folders(APART, os.getcwd())}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    found = told["found"]
    exact = found.pop("none")
    assert exact["label"] == "float32"
    for name, result in found.items():
        assert result["label"].startswith("int8 weights"), name
        assert result["new"] == [4] * 6, "rows of unequal lengths share a batch"
        assert result["loss"] == pytest.approx(exact["loss"], abs=0.05)
        assert result["loss"] != exact["loss"]
        assert result["bytes"] < 0.6 * exact["bytes"]
        assert result["facts"]["quantized_layers"] == result["facts"]["linear_layers"] > 0
        assert result["operations"] == exact["operations"], "of whatever it is stored as, a product takes the same"
    assert (found["int8-weight-only"]["arithmetic"], found["int8-dynamic"]["arithmetic"]) == (
        "float32",
        "int8",
    )
    assert exact["warnings"] == found["int8-weight-only"]["warnings"]
    rounds, *others = (each for each in found["int8-dynamic"]["warnings"] if each not in exact["warnings"])
    assert not others
    assert "expect different ids with another batch, number of threads or CPU" in rounds
    refused = told["refused"]
    for name in ("int4-weight-only", "float8-weight-only", "float8-dynamic"):
        assert "need a GPU of compute capability 8." in refused[name], name
    assert "no linear layer has a shape" in refused["odd shapes"]
    assert told["float8"]["label"].startswith("float8 weights (bfloat16")
    assert told["float8"]["loss"] == pytest.approx(exact["loss"], abs=0.05)
    assert told["float8"]["bytes"] < 0.35 * exact["bytes"]


@pytest.mark.skipif(find_spec("torchao") is not None, reason="torchao is installed here")
def test_without_torchao_the_remedy_is_said():
    with pytest.raises(MissingDependencyError, match=r'need torchao .*pip install "llmtrack\[torchao\]"'):
        load_engine("synthetic:tiny", device="cpu", quantization="int8-weight-only")
