"""The predicted memory of a model before it is loaded: from its last measurement, else from its weights."""

from __future__ import annotations

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.host.formatting import GIB, MIB
from llmtrack.run.executors import footprint
from llmtrack.run.executors.footprint import OVERHEAD, fits, predicted_bytes, record, weights_bytes
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.pool import Pool
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Variant
from tests.run.scenarios import generating
from tests.tracking.samples import measurement


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def memory(monkeypatch):
    """Set the total and free memory."""

    def has(total, free, cards=()):
        monkeypatch.setattr(footprint.psutil, "virtual_memory", lambda: type("Memory", (), {"total": total}))
        monkeypatch.setattr(footprint, "available_bytes", lambda: free)
        monkeypatch.setattr(footprint, "card_of", lambda device: next(iter(cards), None))

    return has


def cpu(model):
    return Variant(model, device="cpu")


def test_synthetic_weights_are_counted_by_their_shape():
    # 30 layers of 576 x 576 twice, 576 x 192 twice and 576 x 1536 thrice, and the table of 49,152 x 576, in 4 bytes.
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert weights_bytes("synthetic:smollm2-135m") == 4 * (30 * layer + 49152 * 576)


def test_files_are_counted_as_float32(tmp_path, cache):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-1.safetensors").write_bytes(b"x" * 1000)
    (folder / "model-2.safetensors").write_bytes(b"x" * 500)
    (folder / "tokenizer.json").write_bytes(b"x" * 5000)
    assert weights_bytes(str(folder)) == 3000
    (tmp_path / "model.gguf").write_bytes(b"x" * 70)
    assert weights_bytes(str(tmp_path / "model.gguf")) == 140


def test_a_packaged_model_is_found_in_the_model_cache(cache):
    assert weights_bytes("packaged:smollm2") == 0, "it is not here yet"
    folder = cache / "models" / "smollm2-gguf0123-v1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 800)
    assert weights_bytes("packaged:smollm2") == 800


def test_a_hub_model_is_found_in_the_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"x" * 10)
    assert weights_bytes("org/name") == 20


def test_the_first_local_candidate_of_a_list_counts():
    assert weights_bytes("packaged:smollm2,synthetic:tiny") == weights_bytes("synthetic:tiny") > 0


def test_the_last_peak_memory_takes_precedence_over_the_weights():
    variant = cpu("synthetic:tiny")
    assert predicted_bytes(variant) == weights_bytes("synthetic:tiny") + OVERHEAD
    record(measurement(scenario=generating("one", variant), metrics={"peak_memory_mib": 700.0}))
    assert predicted_bytes(variant) == 700 * MIB
    assert predicted_bytes(Variant("synthetic:tiny", device="cpu", dtype="bfloat16")) != 700 * MIB


def test_an_unknown_model_is_assumed_to_fit(memory):
    memory(8 * GIB, 2 * GIB)
    assert predicted_bytes(cpu("org/never-fetched")) == 0
    assert fits(cpu("org/never-fetched"))


@pytest.mark.parametrize(("free_mib", "is_predicted_to_fit"), [(1_820, True), (1_818, False)])
def test_a_tenth_of_the_memory_stays_free(memory, free_mib, is_predicted_to_fit):
    variants = [cpu("synthetic:tiny"), cpu("synthetic:tiny-gpt2")]
    for variant in variants:
        record(measurement(scenario=generating("one", variant), metrics={"peak_memory_mib": 500.0}))
    memory(8 * GIB, free_mib * MIB)
    assert fits(*variants) is is_predicted_to_fit
    assert fits(variants[0])
    assert fits()


def test_a_model_on_a_gpu_is_compared_with_its_free_memory(memory, monkeypatch):
    variant = Variant("synthetic:tiny", device="cuda:0")
    record(measurement(scenario=generating("one", variant), metrics={"peak_memory_mib": 3000.0}))
    memory(8 * GIB, 8 * GIB, cards=[type("Card", (), {"uuid": "GPU-1"})])
    for free, result in ((3_999, False), (4_001, True)):
        monkeypatch.setattr(footprint, "query_driver", lambda *options, free=free: [["10000", str(free)]])
        assert fits(variant) is result
    monkeypatch.setattr(footprint, "query_driver", lambda *options: [["[N/A]", "[N/A]"]])
    assert fits(variant), "what the driver does not tell is judged by the machine's memory"


def test_a_pool_frees_the_least_recently_used_model_first(memory):
    loaded, clock = [], FakeClock()
    memory(8 * GIB, 1_820 * MIB)

    def load(variant):
        loaded.append(variant.model)
        return ScriptedEngine(clock, Script(1, 1))

    pool = Pool(lambda: InlineExecutor(load, clock), is_full=lambda: False)
    one, other, large = map(cpu, ("synthetic:tiny", "synthetic:tiny-gpt2", "synthetic:1m"))
    sizes = {one: 500.0, other: 500.0, large: 1500.0}
    for variant, size in sizes.items():
        record(measurement(scenario=generating("one", variant), metrics={"peak_memory_mib": size}))
    assert pool.has_room([one, other])
    assert not pool.has_room([one, other, large])
    pool.run([generating("one", one)], print)
    pool.run([generating("other", other)], print)
    assert pool.holds(one)
    pool.run([generating("large", large)], print)
    assert not pool.holds(one)
    assert loaded == [one.model, other.model, large.model]
    pool.close()


@pytest.mark.usefixtures("_known_ceilings")
def test_variants_that_differ_in_call_settings_share_a_model():
    """The baseline stays loaded while its thread counts are measured; its model is counted and freed once."""
    created = []

    def make():
        created.append(InlineExecutor())
        return created[-1]

    def on_event(event):
        assert not isinstance(event, Failure), event.reason
        if isinstance(event, Measurement):
            threads.append(event.facts["threads"])

    threads: list[object] = []
    pool = Pool(make, is_full=lambda: False, most=1, fits=lambda *variants: True)
    one, two = (Variant("synthetic:tiny", device="cpu", options=(("threads", count),)) for count in (1, 2))
    assert pool.has_room([one, two]), "they are one model"
    for variant in (one, two, one):
        pool.run([generating("one", variant)], on_event)
        assert pool.holds(one)
        assert pool.holds(two)
    assert (threads, len(created)) == ([1, 2, 1], 1)
    assert not pool.hold_only(two)
    pool.free(one)
    assert not pool.holds(two)
    pool.close()
