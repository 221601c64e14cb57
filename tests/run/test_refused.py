"""Unusable models and texts are refused before a study begins: exit code 2, one line, nothing tracked."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import backends, baseline, perplexity, quantization, suite, training, tune
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.run import main as entry
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, TrainTask
from llmtrack.tracking.read.query import runs
from llmtrack.worker.identity import check
from tests.forking import ForkedWorker
from tests.run.scenarios import MODEL

QUICK = ["--model", "synthetic:tiny", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a folder without a model, an invalid GGUF file, and a text that is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    return tmp_path


@pytest.mark.parametrize(
    ("experiment", "arguments", "message"),
    [
        (perplexity, ["--corpus", "novel.txt"], "no corpus 'novel.txt'"),
        (perplexity, ["--corpus", "latin.txt"], "is not UTF-8"),
        (training, ["--corpus", "novel.txt"], "no corpus 'novel.txt'"),
        (quantization, ["--corpus", "novel.jsonl"], "no corpus 'novel.jsonl'"),
        (suite, ["--experiments", "baseline,perplexity", "--model", "./empty"], "./empty: "),
        (tune, ["--corpus", "novel.txt"], "no corpus 'novel.txt'"),
        (tune, ["--model", "./empty", "--space", "backend=torch"], "./empty: "),
        (baseline, ["--model", "./empty"], "./empty: "),
        (baseline, ["--model", "broken.gguf"], "broken.gguf: "),
        (baseline, ["--model", "./empty,broken.gguf"], "tried 2: "),
        (baseline, ["--model", "some/model"], "some/model: "),
        (backends, ["--model", "./empty"], "./empty: "),
    ],
)
def test_a_missing_model_or_text_is_refused_without_a_run(
    folder, uri, monkeypatch, capsys, experiment, arguments, message
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(entry, "make_executors", lambda settings: [InlineExecutor()])
    monkeypatch.setattr("experiments.tune.make_executor", lambda settings: InlineExecutor())
    with pytest.raises(SystemExit) as ended:
        experiment.main([*QUICK, *arguments, "--tracking-uri", uri])
    captured = capsys.readouterr()
    (line,) = [line for line in (captured.out + captured.err).splitlines() if "error: " in line] or [captured]
    assert ended.value.code == 2
    assert message in line
    assert "Traceback" not in captured.out + captured.err
    assert runs(kind=None, tracking_uri=uri).empty


def scenarios(**names):
    """Return one scenario of each kind that names a model or a text."""
    model, text = names.get("model", MODEL.model), names.get("text", "builtin")
    variant = Variant(model, device="cpu")
    generate, score = GenerateTask(("a",)), PerplexityTask(corpus=text)
    calibrated = Variant(MODEL.model, options=(("calibration", text),), backend="onnx", quantization="int4-gptq")
    return {
        "scored": Scenario("a", variant, score),
        "trained": Scenario("a", variant, TrainTask(corpus=text)),
        "scored beside": Scenario("a", variant, generate, quality=QualityCheck(score)),
        "compared with": Scenario("a", MODEL, generate, quality=QualityCheck(reference=variant)),
        "calibrated": Scenario("a", calibrated if "text" in names else variant, generate),
    }


NAMED = [({"model": "./empty"}, kind) for kind in scenarios()]
NAMED += [({"text": "novel.txt"}, kind) for kind in scenarios() if kind != "compared with"]


@pytest.mark.parametrize(("names", "kind"), NAMED)
def test_every_kind_of_model_and_text_is_checked(folder, names, kind):
    (name,) = names.values()
    with pytest.raises(LlmtrackError, match=name):
        check([scenarios()["scored"], scenarios(**names)[kind]])


def test_existing_models_and_texts_are_accepted(folder):
    check(list(scenarios().values()))


@pytest.mark.slow(1)
def test_a_worker_refuses_in_the_same_words(folder):
    executor = ProcessExecutor(start=ForkedWorker)
    try:
        with pytest.raises(UsageError, match="no corpus 'novel"):
            executor.check([scenarios(text="novel.txt")["scored"]])
        executor.check([scenarios()["scored"]])
    finally:
        executor.close()
