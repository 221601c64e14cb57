"""Run the benchmarks one after the other, and update docs/benchmarks.md: python -m benchmarks [NAME ...]."""

from __future__ import annotations

import subprocess
import sys
import time

import click

from benchmarks import page
from benchmarks.results import RESULTS

_SIDE_BY_SIDE = ("plain_loop", "optimum", "lm_eval", "lm_eval_long", "llama", "runtimes")
NAMES = (*_SIDE_BY_SIDE, "cost", "query", "startup", "ray_sweep", "four_bits")
"""Modules of this package that are `benchmark`s; each runs in a separate process, which isolates its memory."""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--small", is_flag=True, help="A trial of seconds each; nothing is stored.")
def main(names: tuple[str, ...], small: bool) -> None:
    """Run the benchmarks."""
    failed = []
    for name in names or NAMES:
        click.secho(f"\n{name}", bold=True)
        start = time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        command += ["--small"] if small else ["--keep", str(RESULTS)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        click.echo(f"{name} took {time.perf_counter() - start:.0f} s")
    if not small:
        page.main()
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
