"""The recipes of the torch backend, in a process with torchao: a fork, since PyTorch and transformers take seconds to import."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from llmtrack.engines.registry import load_engine
from llmtrack.errors import MissingDependencyError
from tests.forking import fork

# Outside of the environment: transformers imports torchao at every start if it can, which takes seconds.
TORCHAO = Path(sys.prefix) / "torchao"

PROGRAM = """
from llmtrack.host.transformers_compat import import_transformers
import_transformers()  # as a worker does
from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.quality.perplexity import score_documents

UNEQUAL = ((5, 17, 99), (7, 8), (3,), tuple(range(20, 40)), (400, 2, 31, 77, 12), (90, 91, 92, 93))
results = {}
for quantization in ("none", "int8-weight-only", "int8-dynamic"):
    engine = load_engine("synthetic:tiny", device="cpu", quantization=quantization)
    new = engine.generate(GenerateRequest(UNEQUAL, 4), lambda: None).new_ids
    loss = score_documents(engine, ["The harbour wakes before the town.", "By noon the crates are gone."]).loss
    results[quantization] = {"label": engine.info.dtype_label, "new": [len(row) for row in new], "warnings": engine.info.warnings, "loss": loss, "bytes": engine.info.model_size_bytes,
        "arithmetic": engine.info.arithmetic, "facts": engine.info.facts, "operations": engine.info.operations.per_token}

# Recipes for GPUs are refused here; without the check, torchao computes some of them on a CPU, too.
from llmtrack.quantize import torchao as recipes
from llmtrack.models import synthetic
import torch
refused = {}
for quantization in ("int4-weight-only", "float8-weight-only", "float8-dynamic"):
    try:
        load_engine("synthetic:tiny", device="cpu", dtype="bfloat16", quantization=quantization)
    except Exception as error:
        refused[quantization] = str(error)
recipes.check_card = lambda *arguments: None
engine = load_engine("synthetic:tiny", device="cpu", dtype="bfloat16", quantization="float8-weight-only")
float8 = {"label": engine.info.dtype_label, "bytes": engine.info.model_size_bytes,
          "loss": score_documents(engine, ["The harbour wakes before the town.", "By noon the crates are gone."]).loss}
odd = torch.nn.Sequential(torch.nn.Linear(20, 20))
try:
    recipes._apply(recipes._int4_weight_only, odd)
except Exception as error:
    refused["odd shapes"] = str(error)
output = {"results": results, "refused": refused, "float8": float8}
"""


def run_program(target: Path) -> None:
    """Run the program with torchao on the path, and write its output to a file."""
    sys.stdout, sys.stderr = (open(file, "w", closefd=False) for file in (1, 2))  # noqa: SIM115 - pytest's are closed
    sys.path.insert(0, str(TORCHAO))
    names: dict[str, object] = {}
    exec(PROGRAM, names)
    target.write_text(json.dumps(names["output"]))


@pytest.mark.slow(5)
@pytest.mark.skipif(
    not (TORCHAO.is_dir() or find_spec("torchao")),
    reason="torchao is an extra that is not installed here; `make test` installs it beside its environment",
)
def test_each_torchao_recipe_on_a_tiny_model(tmp_path):
    process = fork(lambda: run_program(tmp_path / "output"), ())
    assert os.waitpid(process, 0)[1] == 0
    output = json.loads((tmp_path / "output").read_text())
    results = output["results"]
    exact = results.pop("none")
    assert exact["label"] == "float32"
    for name, result in results.items():
        assert result["label"].startswith("int8 weights"), name
        assert result["new"] == [4] * 6, "rows of unequal lengths share a batch"
        assert result["loss"] == pytest.approx(exact["loss"], abs=0.05)
        assert result["loss"] != exact["loss"]
        assert result["bytes"] < 0.6 * exact["bytes"]
        assert result["facts"]["quantized_layers"] == result["facts"]["linear_layers"] > 0
        assert result["operations"] == exact["operations"], "operations do not depend on how weights are stored"
    assert [results[name]["arithmetic"] for name in ("int8-weight-only", "int8-dynamic")] == ["float32", "int8"]
    assert exact["warnings"] == results["int8-weight-only"]["warnings"]
    (warning,) = (text for text in results["int8-dynamic"]["warnings"] if text not in exact["warnings"])
    assert "expect different ids with another batch, number of threads or CPU" in warning
    refused = output["refused"]
    for name in ("int4-weight-only", "float8-weight-only", "float8-dynamic"):
        assert "need a GPU of compute capability 8." in refused[name], name
    assert "no linear layer has a shape" in refused["odd shapes"]
    assert output["float8"]["label"].startswith("float8 weights (bfloat16")
    assert output["float8"]["loss"] == pytest.approx(exact["loss"], abs=0.05)
    assert output["float8"]["bytes"] < 0.35 * exact["bytes"]


@pytest.mark.skipif(find_spec("torchao") is not None, reason="torchao is installed here")
def test_without_torchao_the_error_names_the_remedy():
    with pytest.raises(MissingDependencyError, match=r'need torchao .*pip install "llmtrack\[torchao\]"'):
        load_engine("synthetic:tiny", device="cpu", quantization="int8-weight-only")
