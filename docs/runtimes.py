"""Update the table of docs/backends.md from a tracked study of `backends`: python -m docs.runtimes [STUDY]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

import llmtrack
from llmtrack.tracked.frames import runs_of
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

PAGE = Path(__file__).with_name("backends.md")
BEGIN, END = "<!-- made by `python -m docs.runtimes` -->\n", "<!-- end -->\n"
_TABLE = re.compile(r"^Taken on .*?(?=^Taken on |\Z)", re.DOTALL | re.MULTILINE)
FLOAT = ("torch", "float32")
PREFILL, DECODE = "prefill_tokens_per_sec", "decode_tokens_per_sec"


def label(run: Run) -> str:
    """Name a run's runtime and recipe or precision."""
    recipe = run.text("quantization")
    return f"{run.text('backend')} {run.text('dtype') if recipe in ('', 'none') else recipe}"


def table(scenarios: pd.DataFrame) -> str:
    """Format a row per runtime, recipe and number of threads.

    Args:
        scenarios: of one study.
    """
    runs = runs_of(scenarios)
    lengths = sorted({run.params["prompt_tokens"] for run in runs})
    largest = max(run.params["batch_size"] for run in runs)
    head = ["runtime, recipe", "threads", "file MiB", "load s"]
    head += [f"prefill, {length} tokens" for length in lengths]
    head += [f"decode behind {lengths[-1]}", "MBU", f"decode, batch {largest}"]
    head += ["perplexity", "KL, nats", "top-1"]
    lines = [_taken(runs), "", _line(head), _line(["---"] * len(head))]
    cells: dict[tuple[str, int], list[Run]] = {}
    # In the order of the plan: oldest first.
    for run in reversed(runs):
        cells.setdefault((label(run), run.params["threads"]), []).append(run)
    for (name, threads), own in cells.items():
        lines.append(_line([name, str(threads), *_figures(own, runs, lengths, largest)]))
    return "\n".join(lines) + "\n"


def _taken(runs: Runs) -> str:
    """Describe where and when the runs were measured, and how many of them beside other programs."""
    facts = runs[-1].environment
    busy = sum(any("machine was busy" in line for line in run.warnings) for run in runs)
    note = f" In {busy} of {len(runs)} cells other programs took a part of the CPU." if busy else ""
    return (
        f"Taken on {runs[-1].start_time:%d %B %Y}: {facts['cpu']}, {facts['cpu_cores']} cores. Speeds in tokens/s with their "
        f"95 % interval; quality beside PyTorch in float32.{note}"
    )


def _figures(cells: list[Run], runs: Runs, lengths: list[int], largest: int) -> list[str]:
    single = {run.params["prompt_tokens"]: run for run in cells if run.params["batch_size"] == 1}
    batch = next((run for run in cells if run.params["batch_size"] == largest), None)
    long = single[lengths[-1]]
    floats = runs.where(lambda run: label(run) == " ".join(FLOAT) and run.agrees(long, "threads"))
    base = next((run for run in floats if run.has("perplexity")), None)
    loss = ""
    if long.number("perplexity") is not None and base is not None:
        change = long.metrics["perplexity"] / base.metrics["perplexity"] - 1
        is_float = label(long) == " ".join(FLOAT)
        loss = f"{long.metrics['perplexity']:.2f}" if is_float else f"{change:+.2%}"
    return [
        _number(long, "file_size_mib", "{:.0f}"),
        _number(long, "load_time_s", "{:.1f}"),
        *(_speed(single.get(length), PREFILL) for length in lengths),
        _speed(long, DECODE),
        _number(long, "memory_bandwidth_utilization", "{:.0%}"),
        _speed(batch, DECODE),
        loss,
        _number(long, "kl_divergence", "{:.4f}"),
        _number(long, "top1_agreement", "{:.1%}"),
    ]


def _speed(run: Run | None, key: str) -> str:
    """Format tokens per second with their interval, which a single repeat lacks."""
    if run is None or (value := run.number(key)) is None:
        return ""
    low, high = (run.number(f"spread/{key}.{end}") for end in ("ci_low", "ci_high"))
    digits = 0 if value >= 100 else 1
    known = low is not None and high is not None and low != high
    interval = f" ({low:.{digits}f} to {high:.{digits}f})" if known else ""
    return f"{value:.{digits}f}{interval}"


def _number(run: Run, key: str, form: str) -> str:
    value = run.number(key)
    return "" if value is None else form.format(value)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_table(page: str, new: str) -> str:
    """Replace the table of a machine on a page, or add it below those of others."""
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    tables = {_machine(text): text.strip("\n") for text in _TABLE.findall(inside)}
    tables[_machine(new)] = new.strip("\n")
    return before + BEGIN + "\n\n".join(tables.values()) + "\n" + END + after


def _machine(text: str) -> str:
    """Return the machine named in a table's first line."""
    return text.partition(": ")[2].partition(". Speeds in ")[0]


@click.command(help=__doc__)
@click.argument("study", default="latest:backends")
@click.option("--show", is_flag=True, help="Print it, and leave the page as it is.")
def main(study: str, show: bool) -> None:
    """Update the page, or print the table."""
    text = table(llmtrack.runs(study=study, status="FINISHED"))
    if show:
        click.echo(text)
    else:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
