"""What pyproject.toml cannot say: in a wheel the experiments are `llmtrack.experiments`, and no module of a common name."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
TEMPLATE = ("MLproject", "conda.yaml")


class WithExperiments(build_py):
    """Copies the experiments into the package, their imports rewritten, and the project that `llmtrack init` writes."""

    def run(self) -> None:
        """Copy the package, and what belongs into it."""
        super().run()
        if self.editable_mode:  # a checkout is used as it is
            return
        package = Path(self.build_lib) / "llmtrack"
        for path in (HERE / "experiments").glob("*.py"):
            self._write(package / "experiments" / path.name, path)
        for name in TEMPLATE:
            self._write(package / "project" / name, HERE / name)

    def _write(self, target: Path, source: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        text = re.sub(r"^(\s*)(from|import) experiments\b", r"\1\2 llmtrack.experiments", text, flags=re.M)
        text = text.replace("python -m experiments.", "python -m llmtrack.experiments.")
        target.write_text(text, encoding="utf-8")


setup(cmdclass={"build_py": WithExperiments})
