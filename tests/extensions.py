"""Packages with entry points, made on the spot: a folder to put on the path of imports, with no installer."""

from __future__ import annotations

from pathlib import Path

PLUGIN = Path(__file__).with_name("plugin_engine.py")


def install(site: Path, package: str, module: str, entry_points: str) -> Path:
    """Lay out a package as an installer would; return the folder for `sys.path`.

    Args:
        site: the folder.
        package: its name; that of its module is the same.
        module: the module's text.
        entry_points: content of its `entry_points.txt`.
    """
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{package}.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    return site


ENGINE = (
    "[llmtrack.engines]\nplugin = plugin_engine:load\n[llmtrack.recipes]\nplugin = plugin_engine:RECIPES\n"
)
