"""Make the table of docs/backends.md from a study of `backends` that was tracked: python -m docs.runtimes [STUDY]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

import llmtrack
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

PAGE = Path(__file__).with_name("backends.md")
BEGIN, END = "<!-- made by `python -m docs.runtimes` -->\n", "<!-- end -->\n"
FLOAT = ("torch", "float32")
PREFILL, DECODE = "prefill_tokens_per_sec", "decode_tokens_per_sec"


def label(run: pd.Series) -> str:
    """Return the runtime and what it runs, in a few words."""
    recipe = ask.text(run, "quantization")
    # A file that is run as it is says itself what its weights are.
    return f"{run['backend']} {run['dtype'] if recipe in ('', 'none') else recipe}"


def table(runs: pd.DataFrame) -> str:
    """Return a row for each runtime, recipe and number of threads.

    Args:
        runs: the scenarios of one study; what is left out was not measured.
    """
    lengths = sorted({int(value) for value in runs["prompt_tokens"]})
    largest = int(runs["batch_size"].max())
    runs = runs.assign(label=[label(run) for _, run in runs.iterrows()])
    head = ["runtime, recipe", "threads", "file MiB", "load s"]
    head += [f"prefill, {length} tokens" for length in lengths]
    head += [f"decode behind {lengths[-1]}", "MBU", f"decode, batch {largest}"]
    head += ["perplexity", "KL, nats", "top-1"]
    lines = [_taken(runs), "", _line(head), _line(["---"] * len(head))]
    # In the order of the plan: oldest first.
    for (what, threads), cells in runs.iloc[::-1].groupby(["label", "threads"], sort=False):
        lines.append(_line([str(what), str(int(threads)), *_figures(cells, runs, lengths, largest)]))
    return "\n".join(lines) + "\n"


def _taken(runs: pd.DataFrame) -> str:
    """Return where and when the runs were measured, and how many of them beside other programs."""
    first = runs.iloc[-1]
    busy = sum("machine was busy" in ask.text(run, "warnings") for _, run in runs.iterrows())
    beside = f" In {busy} of {len(runs)} cells other programs took a part of the CPU." if busy else ""
    return (
        f"Taken on {first['start_time']:%d %B %Y}: {first['env.cpu']}, {first['env.cpu_cores']} cores. Speeds in tokens/s with their "
        f"95 % interval; quality beside PyTorch in float32.{beside}"
    )


def _figures(cells: pd.DataFrame, runs: pd.DataFrame, lengths: list[int], largest: int) -> list[str]:
    single = {int(run["prompt_tokens"]): run for _, run in cells[cells["batch_size"] == 1].iterrows()}
    batch = cells[cells["batch_size"] == largest]
    long = single[lengths[-1]]
    same = runs[
        (runs["backend"] == FLOAT[0]) & (runs["dtype"] == FLOAT[1]) & (runs["threads"] == long["threads"])
    ]
    base = same[same["perplexity"].notna()]
    loss = ""
    if ask.number(long, "perplexity") is not None and len(base):
        change = long["perplexity"] / base.iloc[0]["perplexity"] - 1
        loss = f"{long['perplexity']:.2f}" if long["label"] == " ".join(FLOAT) else f"{change:+.2%}"
    return [
        _number(long, "file_size_mib", "{:.0f}"),
        _number(long, "load_time_s", "{:.1f}"),
        *(_speed(single.get(length), PREFILL) for length in lengths),
        _speed(long, DECODE),
        _number(long, "memory_bandwidth_utilization", "{:.0%}"),
        _speed(batch.iloc[0] if len(batch) else None, DECODE),
        loss,
        _number(long, "kl_divergence", "{:.4f}"),
        _number(long, "top1_agreement", "{:.1%}"),
    ]


def _speed(run: pd.Series | None, key: str) -> str:
    """Return tokens per second with their interval, which a single repeat has none of."""
    if run is None or (value := ask.number(run, key)) is None:
        return ""
    ends = [ask.number(run, f"spread/{key}.{end}") for end in ("ci_low", "ci_high")]
    digits = 0 if value >= 100 else 1
    told = None not in ends and ends[0] != ends[1]
    interval = f" ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})" if told else ""
    return f"{value:.{digits}f}{interval}"


def _number(run: pd.Series, key: str, form: str) -> str:
    value = ask.number(run, key)
    return "" if value is None else form.format(value)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def filled(page: str, made: str) -> str:
    """Return a page with the table of one machine made anew, or added below those of others."""
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    tables = {_machine(each): each.strip("\n") for each in _TABLE.findall(inside)}
    tables[_machine(made)] = made.strip("\n")
    return before + BEGIN + "\n\n".join(tables.values()) + "\n" + END + after


_TABLE = re.compile(r"^Taken on .*?(?=^Taken on |\Z)", re.DOTALL | re.MULTILINE)


def _machine(made: str) -> str:
    """Return the machine that a table's first line names."""
    return made.partition(": ")[2].partition(". Speeds in ")[0]


@click.command(help=__doc__)
@click.argument("study", default="latest:backends")
@click.option("--show", is_flag=True, help="Print it, and leave the page as it is.")
def main(study: str, show: bool) -> None:
    """Make it."""
    made = table(llmtrack.runs(study=study, status="FINISHED"))
    if show:
        click.echo(made)
    else:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
