"""Worker processes: their results, recovery after a death, and isolation from library output."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from experiments import declarations
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.run import main as entry
from llmtrack.run.executors import worker_process
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.executors.timeouts import Patience
from llmtrack.run.executors.worker_process import WorkerProcess
from llmtrack.spec.events import Log, Progress, SoFar, event_to_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.task import PerplexityTask, RepeatPolicy
from llmtrack.worker.identity import identify
from tests.forking import ForkedWorker
from tests.run.scenarios import MODEL, by_name, generating, scoring
from tests.search_path import with_folders

ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)


@pytest.fixture
def executor() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor()
    yield executor
    executor.close()


@pytest.fixture
def forked() -> Iterator[ProcessExecutor]:
    """An executor whose workers are forked off a process with all imports, which take seconds."""
    executor = ProcessExecutor(start=ForkedWorker)
    yield executor
    executor.close()


def run(executor, *scenarios):
    events = []
    executor.run(scenarios, events.append)
    return events


def kinds(events):
    return {
        name: outcome.kind if isinstance(outcome, Failure) else "measured" for name, outcome in by_name(events).items()
    }


@pytest.mark.slow(12)
def test_a_killed_worker_loses_one_scenario(monkeypatch, request):
    """One model in a real worker: facts of the machine, identity, outcomes, then a kill during a measurement."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kinds_of_worker = iter((WorkerProcess, ForkedWorker))
    executor = ProcessExecutor(start=lambda: next(kinds_of_worker)())
    request.addfinalizer(executor.close)
    machine = executor.machine()
    assert machine["devices"].startswith("cpu")
    assert machine["threads"] == "1"
    first = executor._worker.pid
    scenarios = [
        generating("one", repeat=ONCE),
        generating("victim", repeat=RepeatPolicy(0, 500, 0, 600, 500), max_new_tokens=20),
        scoring("after", max_length=64),
    ]
    assert executor.identify(scenarios[0]) == identify(scenarios[0]), "as this process does"
    events = []

    def kill_once(event):
        events.append(event)
        if event == Progress("victim", "repeat 2"):
            assert executor._worker.pid == first, "the worker that described the machine measures"
            os.kill(first, signal.SIGKILL)

    executor.run(scenarios, kill_once)
    assert kinds(events) == {"one": "measured", "victim": "killed", "after": "measured"}
    assert executor._worker.pid != first
    assert "killed (SIGKILL), most likely by the system for lack of memory" in by_name(events)["victim"].reason
    one = by_name(events)["one"]
    assert one.scenario == scenarios[0]
    assert one.facts["model_id"] == "synthetic:tiny"
    assert one.metrics["tokens_generated"] == 5
    assert one.metrics["total_latency_s"] > 0
    after = by_name(events)["after"]
    assert after.metrics["perplexity"] > 1
    assert one.started_at < after.started_at


@pytest.mark.slow(3)
def test_library_output_does_not_disturb_events(executor, noisy_backend, capfd):
    """print, writes to descriptor 1 and output of children all go to standard error."""
    variant = Variant("fine", backend="noisy", device="cpu")
    events = run(executor, generating("one", variant), scoring("two", variant))
    assert kinds(events) == {"one": "measured", "two": "measured"}
    assert events[:2] == [Progress("one", "loading"), Log("Loaded: scripted | device=cpu | dtype=float32")]
    captured = capfd.readouterr()
    assert captured.out == ""
    for text in ("loading", "generating", "scoring", "not ours"):
        assert text in captured.err
    # A further group of the variant: the same process, and the same engine in it.
    assert kinds(run(executor, generating("three", variant))) == {"three": "measured"}
    assert len(noisy_backend.read_text().splitlines()) == 1
    worker = executor._worker
    executor.close()
    assert not worker.lives(), "closing ends the worker"


@pytest.mark.slow(1)
def test_each_variant_has_its_own_process(forked, noisy_backend):
    for model in ("fine", "other"):
        variant = Variant(model, backend="noisy", device="cpu")
        assert kinds(run(forked, generating(model, variant))) == {model: "measured"}
    (first, _), (second, _) = (line.split() for line in noisy_backend.read_text().splitlines())
    assert first != second


@pytest.mark.slow(1)
@pytest.mark.parametrize(("death", "reason"), [("killed", "killed (SIGKILL)"), ("exits", "exit code 3 in the middle")])
def test_a_death_is_blamed_on_the_running_scenario(forked, noisy_backend, death, reason):
    """`before` has its outcome when scoring ends the worker."""
    variant = Variant(death, backend="noisy", device="cpu")
    events = run(forked, generating("before", variant), scoring("fatal", variant))
    assert kinds(events) == {"before": "measured", "fatal": "killed"}
    assert reason in by_name(events)["fatal"].reason


class FakeWorker:
    """Plays a script: messages, None for its death, `TimeoutError` for silence."""

    pid = 0

    def __init__(self, *messages):
        self.told, self.jobs, self.waited, self.ended = list(messages), [], [], False

    def lives(self):
        return not self.ended

    def send(self, job):
        self.jobs.append([scenario["name"] for scenario in job.get("measure", [])])

    def receive(self, seconds):
        self.waited.append(seconds)
        message = self.told.pop(0)
        if message is TimeoutError:
            raise TimeoutError
        return {"event": event_to_json(message)} if dataclasses.is_dataclass(message) else message

    def ask_to_end(self):
        pass

    def end(self):
        self.ended = True
        return 7

    def exit_code(self):
        return self.end()

    def death(self):
        return f"exit code {self.end()}"


def faked(*workers, patience=None):
    left = list(workers)
    return ProcessExecutor(patience, lambda: left.pop(0))


def done(scenario):
    return Measurement(scenario, "w", {}, {})


ONE, TWO, THREE = (generating(name) for name in ("one", "two", "three"))
READY, DONE = {"ready": True}, {"done": True}


def test_a_prestarted_worker_is_used_and_ended():
    first = FakeWorker(READY, {"machine": {"devices": "cpu"}})
    executor = faked(first, FakeWorker())
    executor.begin()
    assert executor.machine() == {"devices": "cpu"}, "by the worker that was begun"
    begun = FakeWorker()
    executor = faked(begun)
    executor.begin()
    executor.close()
    assert not begun.lives()


@pytest.mark.parametrize("broken", [UsageError("no such store"), KeyboardInterrupt()])
def test_the_worker_starts_before_the_store_is_opened_and_ends_if_that_fails(monkeypatch, broken):
    worker, seen = FakeWorker(), []

    def refused(settings):
        seen.append(worker.lives())
        raise broken

    monkeypatch.setattr(entry, "ProcessExecutor", lambda patience: faked(worker, patience=patience))
    monkeypatch.setattr(entry, "open_tracker", refused)
    experiment = declarations()["baseline"].experiment(declarations()["baseline"].config())
    with pytest.raises(type(broken)):
        entry.run_experiment(experiment, declarations()["baseline"].config())
    assert seen == [True]
    assert not worker.lives()


def test_a_broken_matplotlib_does_not_prevent_measuring(monkeypatch):
    def broken():
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr(entry.drawing, "preload", broken)
    monkeypatch.setattr(entry.Tracker, "open", lambda *_, **__: SimpleNamespace(offline=True))
    assert entry.open_tracker(declarations()["baseline"].config()).offline


def test_a_death_between_two_scenarios_is_blamed_on_the_next():
    workers = (FakeWorker(READY, Progress("one", "repeat 1"), done(ONE), None), FakeWorker(READY, done(THREE), DONE))
    events = run(faked(*workers), ONE, TWO, THREE)
    assert kinds(events) == {"one": "measured", "two": "killed", "three": "measured"}
    assert [worker.jobs for worker in workers] == [[["one", "two", "three"]], [["three"]]]
    assert "exit code 7" in by_name(events)["two"].reason


def test_workers_that_die_at_the_start_fail_every_scenario():
    events = run(faked(*(FakeWorker(None) for _ in range(3))), ONE, TWO, THREE)
    assert kinds(events) == dict.fromkeys(("one", "two", "three"), "killed")


def test_a_missing_outcome_is_an_error():
    events = run(faked(FakeWorker(READY, done(ONE), DONE), FakeWorker(READY, done(THREE), DONE)), ONE, TWO, THREE)
    assert kinds(events) == {"one": "measured", "two": "error", "three": "measured"}


@pytest.mark.parametrize("step", ["warm-up", "repeat 3", "batch 2/7", "step 3/300", "evaluating after step 20"])
def test_a_hanging_worker_is_killed_and_the_others_continue(step):
    hung = FakeWorker(READY, done(ONE), Progress("two", step), TimeoutError)
    events = run(faked(hung, FakeWorker(READY, done(THREE), DONE)), ONE, TWO, THREE)
    assert kinds(events) == {"one": "measured", "two": "timeout", "three": "measured"}
    assert hung.ended, "the worker that hangs is killed"
    assert f"no sign of life for 15:00 (at: {step})" in by_name(events)["two"].reason
    assert "time_limit" in by_name(events)["two"].reason


@pytest.mark.parametrize("messages", [(), (READY,), (READY, Log("exporting ..."))])
def test_a_second_hang_while_loading_fails_all_scenarios(messages):
    """One hang may be chance; after a second one, every scenario is expected to hang."""
    once = faked(FakeWorker(*messages, TimeoutError), FakeWorker(READY, done(TWO), done(THREE), DONE))
    assert kinds(run(once, ONE, TWO, THREE)) == {"one": "timeout", "two": "measured", "three": "measured"}
    twice = faked(FakeWorker(*messages, TimeoutError), FakeWorker(*messages, TimeoutError))
    assert kinds(run(twice, ONE, TWO, THREE)) == dict.fromkeys(("one", "two", "three"), "timeout")


@pytest.mark.parametrize("then", [(), (Progress("two", "reading the corpus"),), (SoFar(done(TWO)),)])
@pytest.mark.parametrize(("end", "reason"), [(None, "exit code 7"), (TimeoutError, "no sign of life for 15:00")])
def test_a_worker_lost_after_a_timing_leaves_the_timing(end, reason, then):
    lost = FakeWorker(READY, SoFar(done(ONE)), SoFar(done(TWO)), done(ONE), *then, end)
    events = run(faked(lost, FakeWorker(READY, done(THREE), DONE)), ONE, TWO, THREE)
    assert kinds(events) == dict.fromkeys(("one", "two", "three"), "measured")
    assert not any(isinstance(event, SoFar) for event in events)
    assert by_name(events)["one"].warnings == by_name(events)["three"].warnings == ()
    (warning,) = by_name(events)["two"].warnings
    assert warning.startswith("what is measured after it is missing: ")
    assert reason in warning


def test_a_partial_result_outlives_a_signal_and_a_failure_replaces_it():
    signalled = faked(FakeWorker(READY, SoFar(done(ONE)), SoFar(done(TWO)), Progress("one", "batch 1/2")))
    events = []

    def interrupt(event):
        events.append(event)
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        signalled.run((ONE, TWO), interrupt)
    assert kinds(events) == {"one": "measured", "two": "measured"}
    assert by_name(events)["one"].warnings == ("what is measured after it is missing: it was interrupted",)
    failed = Failure(ONE, "non_finite", "nan")
    assert kinds(run(faked(FakeWorker(READY, SoFar(done(ONE)), failed, DONE)), ONE)) == {"one": "non_finite"}


def scored_beside(name, variant, **settings):
    check = QualityCheck(PerplexityTask(max_length=64))
    return replace(generating(name, variant, ONCE, **settings), quality=check)


@pytest.mark.slow(1)
@pytest.mark.parametrize("death", ["killed", "exits"])
def test_a_real_worker_that_dies_while_scoring_leaves_every_timing(forked, noisy_backend, death):
    variant = Variant(death, backend="noisy", device="cpu")
    events = run(forked, scored_beside("one", variant), scored_beside("two", variant, max_new_tokens=6))
    assert kinds(events) == {"one": "measured", "two": "measured"}
    for outcome in by_name(events).values():
        assert outcome.metrics["total_latency_s"] > 0
        assert "perplexity" not in outcome.metrics
        assert "what is measured after it is missing: the worker" in outcome.warnings[-1]


def inline(script, time_limit, *scenarios):
    clock = FakeClock()
    return run(InlineExecutor(lambda variant: ScriptedEngine(clock, *script), clock, time_limit), *scenarios)


@pytest.mark.usefixtures("_known_ceilings")
def test_inline_ends_a_late_scenario_before_its_next_call():
    """Prefill 1 s and 0.1 s per token: 5 tokens take 1.4 s, 41 take 5 s, with a limit of 3 s."""
    slow = generating("slow", max_new_tokens=41)
    events = inline([Script(1.0, 0.1)], 3.0, slow, ONE, TWO)
    assert kinds(events) == {"slow": "timeout", "one": "measured", "two": "measured"}
    assert by_name(events)["slow"].reason.startswith("warm-up took 0:05, and time_limit is 0:03: ")
    calls = [event.step for event in events if event.__class__ is Progress and event.scenario == "slow"]
    assert calls == ["loading", "warm-up"]
    assert kinds(inline([Script(1.0, 0.1)], 0.0, slow, ONE)) == {"slow": "measured", "one": "measured"}
    assert kinds(inline([Script(1.0, 0.1)], 5.5, slow, ONE)) == {"slow": "measured", "one": "measured"}


@pytest.mark.usefixtures("_known_ceilings")
def test_inline_keeps_the_result_of_a_late_last_call():
    slow = generating("slow", repeat=ONCE, max_new_tokens=41)
    (outcome,) = by_name(inline([Script(1.0, 0.1)], 3.0, slow)).values()
    assert "repeat 1 took 0:05, and time_limit is 0:03" in outcome.warnings


def test_timeouts_of_a_silent_worker():
    """300 s to start, an hour to load, then 5 minutes and ten times max_seconds (60); or time_limit."""
    messages = (
        READY,
        Log("exporting"),
        Progress("one", "warm-up"),
        Progress("one", "loading the reference"),
        done(ONE),
        DONE,
    )
    worker = FakeWorker(*messages)
    run(faked(worker), ONE)
    assert worker.waited == [300, 3600, 3600, 900, 3600, 3600]
    worker = FakeWorker(*messages)
    run(faked(worker, patience=Patience(time_limit=20)), ONE)
    assert worker.waited == [300, 20, 20, 20, 20, 20]


def test_a_worker_that_was_asked_before_may_load_for_an_hour_too():
    """It says only once that it is ready; each variant that it loads may be converted in silence."""
    load = (Progress("one", "loading"), Log("quantizing ..."), Progress("one", "warm-up"), done(ONE), DONE)
    worker = FakeWorker(READY, {"machine": {}}, *load, {"freed": True}, *load)
    executor = faked(worker)
    executor.machine()
    run(executor, ONE)
    executor.free()
    run(executor, ONE)
    waited = [300, 3600, 3600, 900, 300]
    assert worker.waited == [300, 300, *waited, 300, *waited]


def test_a_hang_while_describing_the_machine_is_one_line():
    with pytest.raises(LlmtrackError, match=r"was silent for 5:00 while starting.*llmtrack doctor"):
        faked(FakeWorker(READY, TimeoutError)).machine()


class NoticedWhenStopped(ForkedWorker):
    """Times out as soon as it is stopped, so that no test waits or depends on the machine's speed."""

    def receive(self, seconds):
        while True:
            try:
                return super().receive(0.1)
            except TimeoutError:
                if psutil.Process(self.pid).status() == psutil.STATUS_STOPPED:
                    raise


@pytest.mark.slow(1)
@pytest.mark.parametrize(("hang", "kind"), [("generating", "timeout"), ("closed", "killed")])
def test_a_stopped_or_deaf_worker_is_killed(noisy_backend, monkeypatch, hang, kind):
    """A real worker that gets SIGSTOP, and one that closes its pipe and lives on."""
    monkeypatch.setattr(worker_process, "DEATH_SECONDS", 1.0)
    variant = Variant(f"stops {hang}", backend="noisy", device="cpu")
    executor = ProcessExecutor(start=NoticedWhenStopped)
    events = run(executor, generating("one", variant, ONCE), scoring("two", variant))
    assert kinds(events) == {"one": kind, "two": "measured"}
    executor.close()
    for line in noisy_backend.read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[0]), 0)


@pytest.mark.slow(2)
def test_closing_kills_a_stopped_worker_and_its_children(forked, noisy_backend):
    variant = Variant("has a child", backend="noisy", device="cpu")
    assert kinds(run(forked, generating("one", variant, ONCE))) == {"one": "measured"}
    pid = int((noisy_backend.parent / "child").read_text())
    os.kill(forked._worker.pid, signal.SIGSTOP)
    forked.close()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow(1)
def test_a_dead_worker_is_noticed_although_its_child_holds_the_pipe(forked, noisy_backend):
    variant = Variant("leaves a child", backend="noisy", device="cpu")
    events = run(forked, generating("one", variant, ONCE))
    assert kinds(events) == {"one": "killed"}
    os.kill(int((noisy_backend.parent / "child").read_text()), signal.SIGKILL)


@pytest.mark.slow(1)
def test_a_worker_that_cannot_start_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", with_folders(tmp_path))
    with pytest.raises(LlmtrackError, match=r"ended with exit code 1 before it could start.*llmtrack doctor"):
        ProcessExecutor().machine()


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ("raise MemoryError", "ended before it could start, for lack of memory: free some"),
        ("raise OSError(12, 'Cannot allocate memory')", "ended before it could start, for lack of memory: free some"),
        ("raise ImportError('libtorch.so: cannot map: Cannot allocate memory')", "ended before it could start, for lack of"),
        ("raise ImportError('libtorch.so: failed to map segment from shared object')", "ended before it could start, for lack of"),
        ("import os; os.kill(os.getpid(), 9)", "was killed before it could start, most likely for lack of memory: free"),
    ],
)  # fmt: skip
def test_a_worker_without_memory_to_start_says_so(monkeypatch, tmp_path, death, reason):
    (tmp_path / "torch.py").write_text(death)
    monkeypatch.setenv("PYTHONPATH", with_folders(tmp_path))
    with pytest.raises(LlmtrackError, match=f"^the worker process {reason}"):
        ProcessExecutor().machine()


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_known_ceilings")
def test_inline_measures_in_this_process():
    events = run(InlineExecutor(), generating("one", MODEL, ONCE))
    assert kinds(events) == {"one": "measured"}
