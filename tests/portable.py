"""`make portable`: run the fast tests as other machines would, and print a table of what passed, failed or could not be run.

`python -m tests.portable NAME...` runs only the machines of these names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.forking import ROOT
from tests.search_path import with_folders

WORKERS = os.environ.get("WORKERS", "2")
FAST = ("-m", "pytest", "-n", WORKERS, "--dist", "worksteal", "-m", "not slow", "-p", "no:cacheprovider")
HIDDEN = ("chromium",)
QUOTA = 1.5
"""CPUs: no whole number, as containers have."""

# What a machine has: `NAME=value` is a variable, the others are functions below. What does not depend on one another shares a run.
MACHINES = {
    "old": (
        "ATEN_CPU_CAPABILITY=default", "ONEDNN_MAX_CPU_ISA=SSE41", "LC_ALL=C", "one core", "no Chromium",
        "in the background",
    ),
    "avx2": (
        "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "PYTHONDONTWRITEBYTECODE=1", "CPU quota",
        "read-only home", "path with a space",
    ),
    "python3.10": ("Python 3.10", "transformers 5"),
    "python3.13": ("Python 3.13", "transformers 5"),
}  # fmt: skip


class NotHereError(Exception):
    """This machine cannot be made to look like that; the text says why."""


@dataclass
class Run:
    """How the tests are started."""

    python: str = sys.executable
    folder: Path = ROOT
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    wrapper: list[str] = field(default_factory=list)


Trait = Callable[[Run, ExitStack], None]


def one_core(run: Run, stack: ExitStack) -> None:
    if shutil.which("taskset") is None:
        raise NotHereError("there is no taskset")
    run.wrapper += ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]


def no_chromium(run: Run, stack: ExitStack) -> None:
    """Leave all programs on the path but these, which may stand beside all others in one folder."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for place in map(Path, reversed(run.environment["PATH"].split(os.pathsep))):
        for program in place.iterdir() if place.is_dir() else ():
            if program.name not in HIDDEN:
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    run.environment["PATH"] = str(folder)


def in_the_background(run: Run, stack: ExitStack) -> None:
    """Ignore what a script's background job and `nohup` ignore, as all does that such a process starts."""
    run.wrapper += ["sh", "-c", 'trap "" INT QUIT HUP && exec "$@"', "sh"]


def cpu_quota(run: Run, stack: ExitStack) -> None:
    """Join a control group that has less time than the CPUs have, of version 2 or 1."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").is_file()
    group = (root if unified else root / "cpu") / f"llmtrack-{os.getpid()}"
    period = 100_000
    try:
        group.mkdir()
        stack.callback(_remove, group)
        if unified:
            (group / "cpu.max").write_text(f"{round(QUOTA * period)} {period}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(round(QUOTA * period)))
    except OSError as error:
        raise NotHereError(f"no control group can be made: {error}") from error
    run.wrapper += ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]


def _remove(group: Path) -> None:
    with suppress(OSError):  # something that a test has started is still in it
        group.rmdir()


def read_only_home(run: Run, stack: ExitStack) -> None:
    """Nothing stops root from writing into a folder but a file system that is read-only."""
    home = stack.enter_context(tempfile.TemporaryDirectory())
    run.environment["HOME"] = home
    if os.geteuid():
        Path(home).chmod(0o500)
        return
    mount = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o ro none "{home}" && exec "$@"', "sh"]
    tried = subprocess.run([*mount, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise NotHereError(f"root may mount nothing here: {tried.stderr.strip()}")
    run.wrapper += mount


def path_with_a_space(run: Run, stack: ExitStack) -> None:
    """Run in a copy, by the same environment as seen from there."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "a checkout"
    left_out = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build")
    shutil.copytree(run.folder, folder, ignore=left_out)
    venv = Path(sys.prefix)
    (folder / ".venv").symlink_to(venv)
    run.folder = folder
    run.python = str(folder / ".venv" / Path(run.python).relative_to(venv))
    # What is installed as editable is the original.
    run.environment["PYTHONPATH"] = with_folders(folder)


def python(version: str) -> Trait:
    """Return a factory of cached environments for a Python and the newest packages."""

    def install(run: Run, stack: ExitStack) -> None:
        venv = ROOT / f".venv-{version}"
        given = [f"PYTHON={interpreter(version)}", f"VENV={venv.name}", "EXTRAS=dev", "CONSTRAINTS="]
        made = subprocess.run(["make", *given, f"{venv.name}/.installed"], cwd=ROOT)
        if made.returncode:
            raise NotHereError("its environment cannot be installed")
        run.python = str(venv / "bin" / "python")

    return install


def interpreter(version: str) -> str:
    """Return the path of a Python of that version, on the path or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for place in filter(None, places):
        # A shim of pyenv is there for versions that are not chosen, and fails.
        if not subprocess.run([place, "-c", "import venv, ensurepip"], capture_output=True).returncode:
            return str(place)
    raise NotHereError(f"there is no Python {version}")


def newest_transformers(run: Run, stack: ExitStack) -> None:
    asked = "import transformers; print(transformers.__version__)"
    version = subprocess.run([run.python, "-c", asked], capture_output=True, text=True).stdout.strip()
    if not version.startswith("5."):
        raise NotHereError(f"transformers {version} is installed")


TRAITS: dict[str, Trait] = {
    "one core": one_core,
    "no Chromium": no_chromium,
    "in the background": in_the_background,
    "CPU quota": cpu_quota,
    "read-only home": read_only_home,
    "path with a space": path_with_a_space,
    "Python 3.10": python("3.10"),
    "Python 3.13": python("3.13"),
    "transformers 5": newest_transformers,
}


@dataclass(frozen=True)
class Row:
    """Result of a simulated machine: the counts of its tests, if they ran."""

    machine: str
    like: str
    counts: tuple[int, int, int] | None = None
    not_run: str = ""

    @property
    def good(self) -> bool:
        """Whether tests ran, and none failed; what cannot be had here is no fault of theirs."""
        return self.counts is None or (self.counts[0] > 0 and self.counts[1] == 0)


def run_as(machine: str) -> list[Row]:
    """Run the fast tests as a machine; what of it cannot be had here is a row of its own."""
    with ExitStack() as stack:
        run, like, rows = Run(), [], []
        for name in MACHINES[machine]:
            try:
                if name in TRAITS:
                    TRAITS[name](run, stack)
                else:
                    variable, _, value = name.partition("=")
                    run.environment[variable] = value
                like.append(name)
            except NotHereError as error:
                rows.append(Row(machine, name, not_run=str(error)))
                if name.startswith("Python"):
                    return rows  # this one's runs are another machine's
        report = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "report.xml"
        print(f"\n{machine}: {', '.join(like)}", flush=True)
        command = [*run.wrapper, run.python, *FAST, f"--junitxml={report}"]
        code = subprocess.run(command, cwd=run.folder, env=run.environment).returncode
        return [Row(machine, ", ".join(like), counted(report, code)), *rows]


def counted(report: Path, code: int) -> tuple[int, int, int]:
    """Return how many tests passed, failed and were skipped; an end that no test explains is a failure."""
    suites = ElementTree.parse(report).getroot().iter("testsuite") if report.is_file() else ()
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return max(0, total - failed - skipped), max(failed, int(code != 0)), skipped


def table(rows: list[Row]) -> str:
    """Return a line for each row."""
    lines = [f"{'machine':<12}{'passed':>8}{'failed':>8}{'skipped':>8}  like"]
    for row in rows:
        if row.counts is None:
            lines.append(f"{row.machine:<12}{'not run':>24}  {row.like}: {row.not_run}")
        else:
            lines.append(f"{row.machine:<12}{'{:>8}{:>8}{:>8}'.format(*row.counts)}  {row.like}")
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Run as these machines, or as all; return an exit code."""
    if unknown := set(names) - MACHINES.keys():
        print(f"no such machine: {', '.join(sorted(unknown))}: use {', '.join(MACHINES)}", file=sys.stderr)
        return 2
    rows = [row for name in names or MACHINES for row in run_as(name)]
    print("\n" + table(rows))
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
