"""Write packages with entry points into a folder for the import path, without an installer."""

from __future__ import annotations

from pathlib import Path

PLUGIN = Path(__file__).with_name("plugin_engine.py")


def install(site: Path, package: str, module: str, entry_points: str) -> Path:
    """Write a package of one module as an installer would; return the folder for `sys.path`.

    Args:
        package: name of the package and of its module.
        module: the module's text.
        entry_points: content of its `entry_points.txt`.
    """
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{package}.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    return site


PLUGINS = {
    "plugin_experiment": "[llmtrack.experiments]\nplugin_words = plugin_experiment\n",
    "plugin_executor": "[llmtrack.executors]\nelsewhere = plugin_executor:make\n",
}
"""Entry points of packages by the name of their module, which is in this folder."""


def install_plugins(site: Path) -> None:
    for package, points in PLUGINS.items():
        install(site, package, Path(__file__).with_name(f"{package}.py").read_text(encoding="utf-8"), points)


ENGINE = "[llmtrack.engines]\nplugin = plugin_engine:load\n[llmtrack.recipes]\nplugin = plugin_engine:RECIPES\n"

# Replaces the imports of a worker that only models need: they take seconds.
LIGHT = """
import sys
from types import ModuleType

def stand_in(name, **content):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)

if "llmtrack.worker.process" in sys.orig_argv:
    stand_in("transformers.generation.utils")
    stand_in("quiet", disable_progress_bar=lambda: None)
    stand_in("transformers.utils", logging=sys.modules["quiet"])
    stand_in("llmtrack.worker.train", measure_training=None)
"""


def scripted_backend(site: Path, module: Path) -> Path:
    """Write a backend of scripted engines, named as its module, for workers that import nothing that only models need."""
    name = module.stem
    install(site, name, module.read_text(encoding="utf-8"), f"[llmtrack.engines]\n{name} = {name}:load\n")
    (site / "sitecustomize.py").write_text(LIGHT, encoding="utf-8")
    return site
