"""Batches beyond the context or the memory are rejected before they are built; limits bound the free memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack import generate_texts, time_generate
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.measure import memory
from llmtrack.measure.memory import available_bytes, check_batch, free_memory
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.parameter import LARGEST
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from llmtrack.worker.generate import measure_generation
from tests.conftest import HANG_S

MIB = 2**20


def engine(context=None):
    return ScriptedEngine(FakeClock(), Script(0.03, 0.005), context_length=context)


@pytest.mark.parametrize(
    ("rows", "prompt", "new", "settings", "needed"),
    [
        (1, 10, 6, {}, 16 * (32 + 10)),
        (3, 10, 6, {}, 3 * 16 * (32 + 10)),
        (3, 10, 6, {"cached": False}, 3 * 16 * 32),
        (3, 10, 6, {"padded": 64}, 3 * 70 * (32 + 10)),
    ],
)
def test_a_batch_needs_its_tokens_and_cache(rows, prompt, new, settings, needed):
    check_batch(engine().info, rows, prompt, new, free=needed, **settings)
    with pytest.raises(ScenarioError, match="ask for fewer rows or tokens") as refused:
        check_batch(engine().info, rows, prompt, new, free=needed - 1, **settings)
    assert refused.value.kind == "out_of_memory"


def test_the_context_is_checked_before_memory():
    check_batch(engine(16).info, 1, 10, 6, free=MIB)
    with pytest.raises(ScenarioError, match="ask for at most 10 prompt tokens") as refused:
        check_batch(engine(16).info, LARGEST, 11, 6, free=0)
    assert refused.value.kind == "too_long"
    with pytest.raises(ScenarioError, match="1,000,000,000 new tokens leave no room for a prompt in the context of 16"):
        check_batch(engine(16).info, 1, 1, LARGEST, free=0)


def test_the_pads_of_generated_texts_take_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**22)
    generate_texts(engine(), "a", 1, pad_to_multiple=8)
    with pytest.raises(ScenarioError, match="1 row of 1,000,001 tokens"):
        generate_texts(engine(), "a", 1, pad_to_multiple=1_000_000)


def test_pads_do_not_count_towards_the_context():
    check_batch(engine(16).info, 1, 10, 6, padded=64, free=MIB)


@pytest.mark.parametrize(
    "task",
    [
        GenerateTask(("a",), max_new_tokens=LARGEST),
        GenerateTask(("a",), prompt_tokens=LARGEST),
        GenerateTask(("a",), pad_to_multiple=LARGEST),
        GenerateTask(("a",), prompt_share=1.0, max_prompt_tokens=LARGEST),
        GenerateTask(("a",) * 200_000),
    ],
)
def test_absurd_sizes_are_rejected_before_a_text_is_encoded(task, monkeypatch):
    scripted = engine()
    monkeypatch.setattr(memory, "free_memory", lambda device: MIB)
    monkeypatch.setattr(scripted, "encode", None)
    (failed,) = measured(scripted, task)
    assert (failed.kind, scripted.calls) == ("out_of_memory", 0)


def test_a_batch_is_checked_after_encoding_its_texts(monkeypatch):
    scripted = engine()
    monkeypatch.setattr(memory, "free_memory", lambda device: MIB)
    with pytest.raises(ScenarioError, match="2 rows of 20,005 tokens"):
        time_generate(scripted, ["a" * 20_000, "b"], 5)
    assert scripted.calls == 0


def measured(scripted, task):
    events = []
    scenario = Scenario("s", Variant(), task, RepeatPolicy(0, 1, 0.0, 1.0))
    measure_generation((scenario,), scripted, events.append, scripted.clock)
    return [event for event in events if isinstance(event, (Failure, Measurement))]


@pytest.mark.parametrize("protocol", ["documents", "rolling"])
def test_a_batch_to_score_is_rejected_before_it_is_built(protocol, monkeypatch):
    """8 rows of at least 32 + 96 bytes a token: at 64 tokens, 65,536 bytes (one token more in a window)."""
    scripted = engine()
    scripted._info = replace(scripted.info, score_bytes_per_token=96)
    texts = ["a" * 64] * 8 if protocol == "documents" else ["a" * 513]
    score = {"documents": score_documents, "rolling": score_rolling}[protocol]
    needed = 8 * (64 + (protocol == "rolling")) * (32 + 96)
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    with pytest.raises(ScenarioError, match="8 rows of 6") as refused:
        score(scripted, texts, max_length=64, batch_size=LARGEST, bos_rule="none")
    assert refused.value.kind == "out_of_memory"
    assert score(scripted, texts, max_length=64, batch_size=2, bos_rule="none").tokens_scored > 0
    monkeypatch.setattr(memory, "free_memory", lambda device: needed)
    assert score(scripted, texts, max_length=64, batch_size=LARGEST, bos_rule="none").tokens_scored > 0


COUNTS = st.one_of(st.integers(1, 64), st.integers(1, LARGEST))


@pytest.mark.slow(1)
@settings(max_examples=60, deadline=None)
@given(
    task=st.builds(
        GenerateTask,
        st.tuples(st.text("ab ", max_size=5), st.text("ab", max_size=5)),
        prompt_tokens=st.none() | COUNTS,
        max_new_tokens=COUNTS,
        use_cache=st.booleans(),
        batch_size=st.none() | COUNTS,
        pad_to_multiple=COUNTS,
        prompt_share=st.none() | st.floats(0.1, 2.0),
        max_prompt_tokens=st.none() | COUNTS,
        empty_prompt=st.sampled_from(["error", "bos"]),
        overlong_prompt=st.sampled_from(["error", "truncate"]),
    ),
    context=st.none() | st.integers(1, 4096),
)
def test_every_task_is_measured_or_rejected_with_little_memory(task, context):
    tracemalloc.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "free_memory", lambda device: MIB // 16)
            (outcome,) = measured(engine(context), task)
        # Includes imports on first use.
        assert tracemalloc.get_traced_memory()[1] < 256 * MIB
    finally:
        tracemalloc.stop()
    if isinstance(outcome, Failure):
        assert outcome.kind in ("too_long", "out_of_memory", "unsupported"), outcome.details
        assert "\n" not in outcome.reason


@pytest.mark.slow(1)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS knows no limit of the address space")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_process_limit_bounds_the_free_memory(limit):
    code = f"""
import resource
from llmtrack.measure.memory import free_memory
from llmtrack.measure import memory
used = memory.psutil.Process().memory_info()
taken = used.vms if "{limit}" == "RLIMIT_AS" else used.data
resource.setrlimit(resource.{limit}, (taken + 100 * 2**20, resource.RLIM_INFINITY))
print(free_memory("cpu") // 2**20)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert 80 < int(process.stdout) <= 100, process.stdout + process.stderr


def test_free_memory_is_bounded_by_the_tightest_limit(monkeypatch, tmp_path):
    groups, own = tmp_path / "sys/fs/cgroup", tmp_path / "proc/self/cgroup"
    own.parent.mkdir(parents=True)
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", 10), (inner.parent, 500, 300)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 100\ninactive_file 50\n")
    own.write_text("0::/outer/inner\n")
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert available_bytes() == free_memory("cpu") == 500 - 300 + 50
    first = groups / "memory" / "docker" / "a"
    first.mkdir(parents=True)
    (first / "memory.limit_in_bytes").write_text("400\n")
    (first / "memory.usage_in_bytes").write_text("390\n")
    (first / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 7\n")
    own.write_text("11:cpu,cpuacct:/x\n4:memory:/docker/a\n0::/outer/inner\n")
    assert available_bytes() == 400 - 390 + 7
    own.unlink()
    assert available_bytes() > 500
