"""A logged quantized model is loaded by MLflow, and generates what its engine generates."""

from __future__ import annotations

import pytest

from experiments import quantization
from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine, load_variant
from llmtrack.host.packages import available
from llmtrack.report.terminal import make_console
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.study.study import run_study
from llmtrack.tracking.write.models import mlflow_model
from tests.conftest import make_here
from tests.run.conftest import _known_ceilings  # noqa: F401 - fixture

pytestmark = pytest.mark.skipif(
    not available("onnx", "any"), reason="the onnx extra is not installed: the rest works without it"
)


@pytest.mark.slow(12)
@pytest.mark.usefixtures("undrawn", "_known_ceilings")
def test_a_logged_model_is_loaded_back_and_generates(tracker, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    make_here(monkeypatch)
    config = quantization.Config(
        model="synthetic:tiny",
        max_new_tokens=4,
        min_repeats=1,
        min_seconds=0,
        max_seconds=1,
        recipes=("onnx/int8-weight-only",),
        max_length=16,
        prompt_tokens=8,
        reference_tokens=16,
        log_model=True,
    )
    experiment = quantization.build(config)
    result = run_study(experiment, tracker=tracker, executor=InlineExecutor(), console=make_console())
    assert result.exit_code == 0
    runs = {run.scenario: run.run_id for run in result.tracked}
    mlflow.set_tracking_uri(tracker.tracking_uri)
    run_id = runs["onnx-int8-weight-only"]
    model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
    texts = model.predict(["The harbour wakes", "A"], params={"max_new_tokens": 5})
    variant = next(s.variant for s in experiment.scenarios if s.name == "onnx-int8-weight-only")
    engine = load_variant(variant)
    requests = [
        GenerateRequest((tuple(engine.encode(text)),), 5, ignore_eos=False) for text in ("The harbour wakes", "A")
    ]
    expected = [engine.decode(engine.generate(request, lambda: None).new_ids[0]) for request in requests]
    assert texts == expected
    assert all(texts)
    # What is not asked for is not logged: the baseline's run has no model.
    base = runs["torch-float32"]
    assert "model" not in {file.path for file in mlflow.MlflowClient().list_artifacts(base)}


@pytest.mark.slow(1)
def test_a_folder_of_safetensors_is_packaged_and_loaded_back(tiny_model_dir):
    mlflow = pytest.importorskip("mlflow")
    with mlflow_model(tiny_model_dir) as files:
        assert {"model/MLmodel", "model/requirements.txt"} <= set(files)
        model = mlflow.pyfunc.load_model(str(files["model/MLmodel"].parent))
        (text,) = model.predict(["The harbour wakes"], params={"max_new_tokens": 3})
    engine = load_engine(str(tiny_model_dir))
    request = GenerateRequest((tuple(engine.encode("The harbour wakes")),), 3, ignore_eos=False)
    assert text == engine.decode(engine.generate(request, lambda: None).new_ids[0])
