"""Options of backends: undeclared ones are rejected, and the values in use are tracked."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated

import pytest
import torch

from experiments import baseline, quantization
from llmtrack.engine import Backend
from llmtrack.engines import registry
from llmtrack.engines.registry import check_variant, load_engine, load_variant
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.engines.torch.pytorch import load, threads_set
from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.packages import available
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.spec.options import Checked, Option, chosen
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.serialization import to_json
from llmtrack.spec.task import GenerateTask
from llmtrack.tracking.write.records import StudyContext, params_of, scenario_record
from llmtrack.worker.machine import describe
from tests.extensions import install
from tests.run.scenarios import MODEL, generating

TINY = Variant("synthetic:tiny", device="cpu")


@dataclass(frozen=True)
class Options(Checked):
    level: Annotated[int, Option("How much.", min=1, max=9)] = 3
    kind: Annotated[str, Option("Which.", choices=("a", "b"))] = "a"
    share: Annotated[float, Option("Of it.", above=0)] = 0.5
    quick: Annotated[bool, Option("Whether.")] = False


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (
            replace(TINY, options=(("thread", 2),)),
            r"the torch backend takes no option 'thread' \(did you mean threads\?\): it takes compile, device_map, tensor_parallel, threads",
        ),
        (
            replace(TINY, options=(("provider", "CPU"),)),
            "the torch backend takes no option 'provider': it takes compile, device_map, tensor_parallel, threads",
        ),
        (replace(TINY, options=(("threads", -1),)), "threads -1 is not possible: use 0 to 1,024"),
        (replace(TINY, options=(("threads", "many"),)), "threads 'many' is not a whole number"),
        (replace(TINY, options=(("threads", True),)), "threads 'True' is not a whole number"),
        (replace(TINY, options=(("threads", 1.5),)), "threads '1.5' is not a whole number"),
        (
            replace(TINY, backend="onnx", options=(("block_size", 32),)),
            "the onnx backend takes no option 'block_size': it takes graph_optimization, provider, threads",
        ),
        (
            replace(TINY, backend="onnx", quantization="int8-static", options=(("calibration_metod", "minmax"),)),
            r"the onnx backend with int8-static takes no option 'calibration_metod' \(did you mean calibration_method",
        ),
        (
            replace(TINY, backend="onnx", quantization="int8-static", options=(("calibration_method", "best"),)),
            "no calibration_method 'best': use one of minmax, percentile, entropy",
        ),
        (
            replace(TINY, backend="onnx", quantization="int8-dynamic", options=(("keep_quality", "much"),)),
            "keep_quality 'much' is not a share of the perplexity",
        ),
        (
            replace(TINY, quantization="int8-dynamic", options=(("calibration", "pydoc"),)),
            "the torch backend with int8-dynamic takes no option 'calibration': it takes compile, device_map, tensor_parallel, threads",
        ),
    ],
)
def test_undeclared_options_are_rejected_before_loading(variant, message):
    for refuse in (
        check_variant,
        load_variant,
        lambda variant: InlineExecutor().check([Scenario("x", variant, GenerateTask(("a",)))]),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            refuse(variant)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "variant",
    [
        replace(TINY, options=(("threads", 2),)),
        replace(TINY, options=(("threads", "2"),)),
        replace(TINY, backend="onnx", options=(("graph_optimization", "basic"), ("threads", 2))),
        replace(
            TINY,
            backend="onnx",
            quantization="int8-mixed",
            options=(("block_size", 32), ("calibration", "pydoc"), ("keep_quality", "none"), ("threads", 1)),
        ),
    ],
)
def test_declared_options_are_accepted(variant):
    check_variant(variant)


def test_values_are_converted_to_their_declared_type():
    assert chosen(Options, (("level", "4"), ("share", 1), ("quick", "yes"), ("other", 3))) == Options(4, "a", 1, True)
    for wrong in (("level", 10), ("kind", "c"), ("share", 0), ("quick", 1), ("kind", True)):
        with pytest.raises(UsageError):
            chosen(Options, [wrong])


@pytest.mark.slow(1)
def test_threads_are_set_during_the_engines_own_calls():
    """Two engines keep their numbers of threads, and the process its own."""
    before = torch.get_num_threads()
    counts = []
    engines = [load_engine("synthetic:tiny", device="cpu", threads=threads) for threads in (before + 1, before + 2)]
    for engine in engines:
        engine.model.register_forward_hook(lambda *_: counts.append(torch.get_num_threads()))
    plain = load_engine("synthetic:tiny", device="cpu")
    assert [engine.info.facts["threads"] for engine in (*engines, plain)] == [before + 1, before + 2, before]
    for engine in engines:
        engine.next_token_logits([1, 2, 3])
        engine.score(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.int64))
        assert torch.get_num_threads() == before
    assert describe()["threads"] == str(before), "env.threads is that of the process"
    assert set(counts[: len(counts) // 2]) == {before + 1}
    assert set(counts[len(counts) // 2 :]) == {before + 2}


def test_threads_are_restored_after_an_error():
    before = torch.get_num_threads()

    def fail() -> None:
        with threads_set(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert torch.get_num_threads() == before


@pytest.mark.slow(8)
@pytest.mark.skipif(not available("onnx", "any"), reason="the onnx extra is not installed")
def test_the_onnx_engine_takes_threads_by_name():
    engine = load_engine("synthetic:tiny", backend="onnx", device="cpu", threads=2, graph_optimization="basic")
    assert (engine.info.facts["threads"], engine.info.facts["graph_optimization"]) == (2, "basic")


def test_the_engines_facts_are_tracked_not_the_request():
    scenario = generating("one", replace(MODEL, options=(("level", 7), ("threads", 2))))
    assert {"level", "threads"}.isdisjoint(params_of(scenario))
    measurement = Measurement(scenario, "work", facts={"threads": 4}, metrics={})
    params = scenario_record(measurement, StudyContext("study", "experiment")).params
    assert params["threads"] == "4" or params["threads"] == 4
    assert "level" not in params


@pytest.mark.parametrize("backend", sorted(registry.BUILTIN))
def test_experiments_pass_threads_to_every_backend(backend):
    check_variant(replace(TINY, backend=backend, options=(("threads", 2),)))
    with pytest.raises(UsageError, match="threads -1 is not possible"):
        load_engine("synthetic:tiny", backend=backend, device="cpu", threads=-1)
    (plain,) = baseline.build(baseline.Config(backend=backend)).scenarios
    (with_threads,) = baseline.build(baseline.Config(backend=backend, threads=2)).scenarios
    assert plain.variant.options == ()
    assert with_threads.variant == replace(plain.variant, options=(("threads", 2),))
    assert "threads" not in str(to_json(plain.variant))


def test_quantization_passes_threads_to_every_variant():
    """A reference with other threads would not be comparable."""
    built = quantization.build(quantization.Config(recipes=("torch/bfloat16", "onnx/int8-static"), threads=2))
    for scenario in built.scenarios:
        assert scenario.variant.option("threads", 0) == 2
        assert scenario.quality is not None
        assert scenario.quality.reference is None or scenario.quality.reference.option("threads", 0) == 2


THEIRS = """
from tests.engines.test_options import Options, engine_of
from llmtrack.engine import Backend

backend = Backend(engine_of, Options)
wrong = Backend(engine_of, {"level": 3})
"""


def engine_of(variant):
    engine = ScriptedEngine(FakeClock(), Script(1.0, 0.1))
    engine._info = replace(engine.info, facts=vars(chosen(Options, variant.options)))
    return engine


def test_a_backend_of_another_package_declares_its_options(tmp_path, monkeypatch):
    points = "[llmtrack.engines]\ntheirs = theirs:backend\nwrong = theirs:wrong\n"
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "theirs", THEIRS, points)))
    engine = load_engine("any", backend="theirs", level=4)
    assert engine.info.facts == {"level": 4, "kind": "a", "share": 0.5, "quick": False}
    with pytest.raises(UsageError, match=r"the theirs backend takes no option 'levle' \(did you mean level\?\)"):
        load_engine("any", backend="theirs", levle=4)
    with pytest.raises(UsageError, match="takes no option 'threads': it takes kind, level, quick, share"):
        check_variant(Variant("any", backend="theirs", options=(("threads", 2),)))
    with pytest.raises(ExtensionError, match=r"backend wrong .*: its options are not a dataclass"):
        load_engine("any", backend="wrong")
    sys.modules.pop("theirs", None)


def test_the_torch_engine_checks_its_options_itself():
    with pytest.raises(UsageError, match="threads -3 is not possible"):
        load(replace(TINY, options=(("threads", -3),)))
    assert Backend(load).options is not registry.BUILTIN["torch"].options
