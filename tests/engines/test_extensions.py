"""An engine and a recipe of another package: found, run from end to end, and named if broken."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmtrack.cli import doctor
from llmtrack.engine import Engine
from llmtrack.engines import registry
from llmtrack.engines.registry import load_engine
from llmtrack.errors import ExtensionError, ScenarioError, UsageError
from llmtrack.experiment import Experiment
from llmtrack.host.entry_points import extensions
from llmtrack.models.folder import model_folder
from llmtrack.models.safe_view import safe_view
from llmtrack.quantize import recipe
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.worker_process import WorkerProcess
from llmtrack.run.study.study import run_study
from llmtrack.spec.options import NoOptions
from llmtrack.spec.scenario import Variant
from llmtrack.tracking.read.query import runs
from tests.conftest import HANG_S
from tests.engines.two_layers import TwoLayers
from tests.extensions import ENGINE, PLUGIN, install
from tests.forking import ForkedWorker
from tests.mlproject import command_of
from tests.run.conftest import console  # noqa: F401 - a fixture
from tests.run.scenarios import generating
from tests.search_path import with_folders
from tests.tracking.conftest import messages, tracker, uri  # noqa: F401 - fixtures

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    """Install the package of an engine and a recipe."""
    site = install(tmp_path_factory.mktemp("site"), "plugin_engine", PLUGIN.read_text(), ENGINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("LLMTRACK_CACHE", str(tmp_path_factory.mktemp("cache")))
        recipe.recipes.cache_clear()
        yield site
    recipe.recipes.cache_clear()
    sys.modules.pop("plugin_engine", None)


class TestPlugin(TwoLayers):
    def load(self, model: str) -> Engine:
        return load_engine(model, backend="plugin")


@pytest.mark.slow(1)
@pytest.mark.parametrize("spec", ["synthetic:tiny", "synthetic:tiny-gpt2"])
def test_the_folder_of_a_synthetic_model_has_its_weights(spec):
    folder = model_folder(spec)
    saved, built = load_engine(str(folder.path), device="cpu"), load_engine(spec, device="cpu")
    ids = built.encode("The harbour")
    assert saved.next_token_logits(ids).equal(built.next_token_logits(ids))
    assert folder.tags == built.info.tags
    assert (folder.model_id, folder.warnings) == (spec, built.info.warnings)
    assert model_folder(spec).path == folder.path


def test_a_local_folder_is_used_through_a_view(tiny_model_dir):
    folder = model_folder(f"no/such/folder,{tiny_model_dir}")
    assert (folder.path, folder.model_id) == (safe_view(tiny_model_dir), str(tiny_model_dir))
    weights = tiny_model_dir / "model.safetensors"
    assert (folder.path / weights.name).samefile(weights)
    assert folder.warnings[0].startswith("passed over no/such/folder")
    assert folder.tags["weights_digest"].startswith("safetensors:")


def test_a_plugins_recipe_is_found_and_applied():
    assert "plugin/rounded" in [listed.label for listed in recipe.recipes()]
    engine = load_engine("synthetic:tiny", backend="plugin", quantization="rounded")
    assert engine.info.dtype_label == "bfloat16 weights (float32)"
    with pytest.raises(UsageError, match="the plugin backend has no quantization 'halved': use none, rounded"):
        load_engine("synthetic:tiny", backend="plugin", quantization="halved")


def test_a_recipes_check_precedes_loading(monkeypatch):
    def check(options):
        raise ScenarioError("no such rounding here", kind="unsupported")

    refusing = tuple(replace(original, check=check) for original in recipe.recipes())
    monkeypatch.setattr(registry, "recipes", lambda: refusing)
    with pytest.raises(ScenarioError, match="no such rounding here"):
        load_engine("synthetic:nothing-of-the-kind", backend="plugin", quantization="rounded")


@pytest.mark.slow(2)
def test_an_experiment_runs_on_a_plugin_engine(plugin, uri, monkeypatch, undrawn):  # noqa: F811
    arguments = ["--model", "synthetic:tiny", "--backend", "plugin", "--tracking-uri", uri]
    arguments += [
        "--max-new-tokens",
        "2",
        "--min-repeats",
        "1",
        "--min-seconds",
        "0",
        "--max-seconds",
        "0.2",
        "--warmup",
        "0",
    ]
    code, printed = baseline(arguments, plugin, monkeypatch)
    assert code == 0, printed
    (run_columns,) = runs(tracking_uri=uri).to_dict("records")
    assert (run_columns["backend"], run_columns["status"]) == ("plugin", "FINISHED")
    assert run_columns["model_source"] == "synthetic"


_DECLARED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from llmtrack.engine import Backend
from llmtrack.spec.options import Option

@dataclass(frozen=True)
class Options:
    {}

load = Backend(lambda variant: None, Options)
"""
BROKEN = {
    "missing": ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that"),
    "raises": ("raise RuntimeError('no licence\\nfound')", "RuntimeError: no licence found"),
    "exits": ("import sys; sys.exit('not here')", "SystemExit: not here"),
    "nameless": ("", "AttributeError: module 'broken' has no attribute 'load'"),
    "wrong": ("load = 3", "it is a int, and not a function load\\(variant\\)"),
    "unreadable": (
        _DECLARED.format("size: Annotated[Whole, Option('Size.')] = 1"),
        "its options Options cannot be read: NameError: name 'Whole' is not defined",
    ),
    "undecided": (
        _DECLARED.format("size: Annotated[int, Option('Size.')]"),
        "its options Options cannot be read: TypeError: .*missing 1 required positional argument: 'size'",
    ),
    "contrary": (
        _DECLARED.format("size: Annotated[int, Option('Size.', min=2)] = 1"),
        "its options Options cannot be read: UsageError: size 1 is not possible: use 2 or more",
    ),
    "imprecise": (
        "from llmtrack.engine import Backend\nload = Backend(lambda variant: None, precisions='float32')",
        "its precisions 'float32' are not a tuple of float32, float16, bfloat16",
    ),
    "partial": (
        "class Half:\n    info = generate = synchronize = close = None\nload = lambda variant: Half()",
        "its engine Half lacks encode, tokenize, decode, score, next_token_logits, reset_peak_memory, peak_memory_bytes",
    ),
}


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path, monkeypatch):
    """Install a broken package; return the reason to be reported."""
    module, reason = BROKEN[request.param]
    points = "[llmtrack.engines]\nsick = broken:load\n[llmtrack.recipes]\nsick = broken:load\n"
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "broken", module, points)))
    recipe.recipes.cache_clear()
    yield reason
    recipe.recipes.cache_clear()
    sys.modules.pop("broken", None)


def test_a_broken_package_is_named_and_does_not_affect_others(broken):
    with pytest.raises(
        ExtensionError, match=f"backend sick .broken:load of the package broken 1.0. .*: {broken}"
    ) as caught:
        registry.load_variant(Variant("synthetic:tiny", backend="sick"))
    assert "\n" not in str(caught.value)
    assert "sick" in registry.backends()
    assert load_engine("synthetic:tiny", device="cpu").info.model_id == "synthetic:tiny"
    assert recipe.find_recipe("torch", "int8-dynamic").name == "int8-dynamic"
    with pytest.raises(UsageError, match=r"no quantization 'theirs': use none.*recipes sick .broken:load") as caught:
        recipe.find_recipe("torch", "theirs")
    assert "\n" not in str(caught.value)


def test_doctor_names_a_broken_package(broken):
    points = [point for group in doctor._EXTENSIONS for point in extensions(group) if point.name == "sick"]
    assert [doctor._extension(point).state for point in points] == ["broken", "broken"]


@pytest.mark.slow(1)
def test_a_study_on_a_broken_package_ends_with_one_line_and_code_2(broken, tracker, console):  # noqa: F811
    scenario = generating("one", Variant("synthetic:tiny", backend="sick", device="cpu"))
    experiment = Experiment("asked", "Does it run?", (scenario,), lambda runs, series: {}, lambda runs: ())
    try:
        code = run_study(experiment, tracker=tracker, executor=InlineExecutor(), console=console).exit_code
        output = console.file.getvalue()
    except ExtensionError as error:  # the command's own way to print one line and exit with code 2
        code, output = 2, str(error)
    assert code == 2
    lines = [line for line in output.splitlines() if "backend sick" in line]
    assert lines
    assert all("cannot be used: " in line for line in lines)


@pytest.mark.slow(1)
@pytest.mark.parametrize(("method", "arguments"), [
    ("encode", ("a",)), ("tokenize", ("a",)), ("decode", ([1],)), ("generate", (None, None)), ("score", (None, None)),
    ("next_token_logits", ([1],)), ("peak_memory_bytes", ()),
])  # fmt: skip
def test_an_engine_with_a_wrong_return_value_is_named_with_its_package(plugin, monkeypatch, method, arguments):
    values: list[object] = []
    monkeypatch.setattr(import_module("plugin_engine").PluginEngine, method, lambda self, *_: values[-1])
    engine = load_engine("synthetic:tiny", backend="plugin")
    for returned in ("text", 3.5j, [], object()):
        values.append(returned)
        if (method, type(returned)) in {("encode", list), ("decode", str)}:
            assert getattr(engine, method)(*arguments) == returned
            continue
        with pytest.raises(ExtensionError) as caught:
            getattr(engine, method)(*arguments)
        assert str(caught.value).startswith(
            f"backend plugin (plugin_engine:load of the package plugin_engine 1.0) cannot be used: {method} returned a"
        )
        assert ", and not " in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_engine_whose_load_fails_is_named(plugin, monkeypatch):
    def load(*arguments):
        raise KeyError("licence")

    monkeypatch.setattr(import_module("plugin_engine"), "load", load)
    with pytest.raises(ExtensionError, match=r"backend plugin .*: load raised KeyError: 'licence'"):
        load_engine("synthetic:tiny", backend="plugin")


@pytest.mark.slow(1)
def test_the_command_reports_a_broken_package_in_one_line_and_help_works(tmp_path, uri, monkeypatch):  # noqa: F811
    site = install(tmp_path / "site", "broken", BROKEN["missing"][0], "[llmtrack.engines]\nsick = broken:load\n")
    arguments = ["--model", "synthetic:tiny", "--backend", "sick", "--tracking-uri", uri]
    monkeypatch.syspath_prepend(str(site))
    code, printed = baseline(arguments, site, monkeypatch)
    assert code == 2
    assert "error: backend sick (broken:load of the package broken 1.0) cannot be used: ModuleNotFoundError" in printed
    assert "Traceback" not in printed
    result = run([sys.executable, "-m", "llmtrack", "--help"], site, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("backend", "name", "options", "why"),
    [
        ("onnx", "int8-dynamic", NoOptions, "onnx/int8-dynamic is the name of a built-in recipe"),
        ("onnx", "mine", dict, "recipe onnx/mine: its options are not a dataclass"),
    ],
)
def test_an_unusable_recipe_is_reported_and_left_out(monkeypatch, backend, name, options, why):
    unusable = recipe.Recipe(name, backend, "all", "int8", print, options)
    point = EntryPoint("theirs", "theirs:RECIPES", recipe.RECIPE_POINTS)
    monkeypatch.setattr(recipe, "load_extension", lambda point: (unusable,))
    with pytest.raises(ExtensionError, match=why):
        recipe.extension_recipes(point)
    monkeypatch.setattr(recipe, "extensions", lambda group: (point,))
    labels = [listed.label for listed in recipe.recipes.__wrapped__()]
    assert len(labels) == len(set(labels))
    assert ("onnx/mine" in labels) is False


@pytest.mark.slow(1)
def test_a_plugin_with_a_built_in_name_is_reported(tmp_path, monkeypatch):
    points = "[llmtrack.engines]\ntorch = plugin_engine:load\n"
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "usurper", "", points)))
    findings = {finding.topic: finding for finding in doctor.examine()}
    assert findings["backend plugin"].state == findings["recipes plugin"].state == findings["backends"].state == "ok"
    assert findings["recipes plugin"].text == "plugin/rounded"
    assert "that of a built-in backend" in findings["backend torch"].text
    assert type(load_engine("synthetic:tiny", device="cpu")).__name__ == "TorchEngine"


def baseline(arguments, site, monkeypatch):
    """Return the exit code and output of the experiment's command, whose separate worker process imports a package."""
    for name, value in surroundings(site).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(WorkerProcess, "_start", ForkedWorker._start)
    result = CliRunner().invoke(command_of("experiments.baseline"), arguments)
    return result.exit_code, result.output


def surroundings(site):
    return os.environ | {"PYTHONPATH": with_folders(site, ROOT), "OMP_NUM_THREADS": "1"}


def run(command, site, **settings):
    return subprocess.run(
        command, capture_output=True, text=True, env=surroundings(site), timeout=HANG_S, check=False, **settings
    )
