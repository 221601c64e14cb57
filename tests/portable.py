"""`make portable`: run the fast tests as other machines would, and print a table of the results.

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
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
FAST = ("-m", "pytest", "-n", WORKERS, *BY_FILE, "-m", "not slow", "-p", "no:cacheprovider")
HIDDEN = ("chromium",)
QUOTA = 1.5
"""CPUs, not a whole number, as in containers."""

# Properties of each machine: variables as `NAME=value`, and traits, functions below. Independent ones share a run.
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


class UnavailableError(Exception):
    """A trait cannot be simulated on this machine; the message says why."""


@dataclass
class Run:
    """How to start the tests."""

    python: str = sys.executable
    folder: Path = ROOT
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    wrapper: list[str] = field(default_factory=list)


Trait = Callable[[Run, ExitStack], None]


def one_core(run: Run, stack: ExitStack) -> None:
    if shutil.which("taskset") is None:
        raise UnavailableError("there is no taskset")
    run.wrapper += ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]


def no_chromium(run: Run, stack: ExitStack) -> None:
    """Remove programs from the path, even if they share a folder with others."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for source in map(Path, reversed(run.environment["PATH"].split(os.pathsep))):
        for program in source.iterdir() if source.is_dir() else ():
            if program.name not in HIDDEN:
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    run.environment["PATH"] = str(folder)


def in_the_background(run: Run, stack: ExitStack) -> None:
    """Ignore the signals that a script's background jobs and `nohup` ignore."""
    run.wrapper += ["sh", "-c", 'trap "" INT QUIT HUP && exec "$@"', "sh"]


def cpu_quota(run: Run, stack: ExitStack) -> None:
    """Join a control group (version 2 or 1) with less CPU time than the CPUs have."""
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
        raise UnavailableError(f"a control group cannot be created: {error}") from error
    run.wrapper += ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]


def _remove(group: Path) -> None:
    with suppress(OSError):  # a test's process may still be in it
        group.rmdir()


def read_only_home(run: Run, stack: ExitStack) -> None:
    """Mount a read-only file system for root, whom permissions do not stop."""
    home = stack.enter_context(tempfile.TemporaryDirectory())
    run.environment["HOME"] = home
    if os.geteuid():
        Path(home).chmod(0o500)
        return
    mount = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o ro none "{home}" && exec "$@"', "sh"]
    attempt = subprocess.run([*mount, "true"], capture_output=True, text=True)
    if attempt.returncode:
        raise UnavailableError(f"root cannot mount here: {attempt.stderr.strip()}")
    run.wrapper += mount


def path_with_a_space(run: Run, stack: ExitStack) -> None:
    """Run in a copy of the checkout, by the same environment under a path in it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "a checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build")
    shutil.copytree(run.folder, folder, ignore=ignored)
    venv = Path(sys.prefix)
    (folder / ".venv").symlink_to(venv)
    run.folder = folder
    run.python = str(folder / ".venv" / Path(run.python).relative_to(venv))
    # The editable install is the original checkout.
    run.environment["PYTHONPATH"] = with_folders(folder)


def python(version: str) -> Trait:
    """Return a trait: an environment, cached, with this Python and the newest packages."""

    def install(run: Run, stack: ExitStack) -> None:
        venv = ROOT / f".venv-{version}"
        variables = [f"PYTHON={interpreter(version)}", f"VENV={venv.name}", "EXTRAS=dev", "CONSTRAINTS="]
        result = subprocess.run(["make", *variables, f"{venv.name}/.installed"], cwd=ROOT)
        if result.returncode:
            raise UnavailableError("its environment cannot be installed")
        run.python = str(venv / "bin" / "python")

    return install


def interpreter(version: str) -> str:
    """Return the path of a Python version, from PATH or pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        # pyenv has shims that fail for versions that are not selected.
        if not subprocess.run([candidate, "-c", "import venv, ensurepip"], capture_output=True).returncode:
            return str(candidate)
    raise UnavailableError(f"there is no Python {version}")


def newest_transformers(run: Run, stack: ExitStack) -> None:
    program = "import transformers; print(transformers.__version__)"
    version = subprocess.run([run.python, "-c", program], capture_output=True, text=True).stdout.strip()
    if not version.startswith("5."):
        raise UnavailableError(f"transformers {version} is installed")


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
    """Result of a simulated machine: its counts of passed, failed and skipped tests, if they ran."""

    machine: str
    like: str
    counts: tuple[int, int, int] | None = None
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether tests ran and none failed; an unavailable trait is no failure."""
        return self.counts is None or (self.counts[0] > 0 and self.counts[1] == 0)


def run_as(machine: str) -> list[Row]:
    """Run the fast tests as a machine; each unavailable trait is a row of its own."""
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
            except UnavailableError as error:
                rows.append(Row(machine, name, not_run=str(error)))
                if name.startswith("Python"):
                    return rows  # this Python's runs would be another machine's
        report = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "report.xml"
        print(f"\n{machine}: {', '.join(like)}", flush=True)
        command = [*run.wrapper, run.python, *FAST, f"--junitxml={report}"]
        code = subprocess.run(command, cwd=run.folder, env=run.environment).returncode
        return [Row(machine, ", ".join(like), test_counts(report, code)), *rows]


def test_counts(report: Path, code: int) -> tuple[int, int, int]:
    """Return the numbers of passed, failed and skipped tests; an exit code without a failed test is a failure."""
    suites = ElementTree.parse(report).getroot().iter("testsuite") if report.is_file() else ()
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return max(0, total - failed - skipped), max(failed, int(code != 0)), skipped


def table(rows: list[Row]) -> str:
    lines = [f"{'machine':<12}{'passed':>8}{'failed':>8}{'skipped':>8}  like"]
    for row in rows:
        if row.counts is None:
            lines.append(f"{row.machine:<12}{'not run':>24}  {row.like}: {row.not_run}")
        else:
            lines.append(f"{row.machine:<12}{'{:>8}{:>8}{:>8}'.format(*row.counts)}  {row.like}")
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Run as the named machines, or as all; return an exit code."""
    if unknown := set(names) - MACHINES.keys():
        print(f"no such machine: {', '.join(sorted(unknown))}: use {', '.join(MACHINES)}", file=sys.stderr)
        return 2
    rows = [row for name in names or MACHINES for row in run_as(name)]
    print("\n" + table(rows))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
