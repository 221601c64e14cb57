"""Collect the content of an HTML report from tracked runs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmtrack.experiment import Experiment, OwnTable
from llmtrack.host.formatting import truncate
from llmtrack.report.page.html import Call, GeneratedText, Plot, Report, Rows, Section
from llmtrack.report.plots.drawing import save
from llmtrack.report.sentences.takeaways import plain_call
from llmtrack.report.tables.rendering import fit_to_width
from llmtrack.report.tables.summary import split_by_task, summary_table, tables_by_task
from llmtrack.report.tables.table import Table
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TextOf = Callable[[str, str], str]

MOST_SAMPLES = 12
LONGEST_SAMPLE = 1200
_PAGE = 150
"""Characters of a row that fit on a page of 1,280 pixels."""

# Label, column and format of each condition.
FACTS = (
    ("model", "model_id", "{}"),
    ("revision", "revision", "{}"),
    ("weights digest", "env.weights_digest", "{}"),
    ("config digest", "env.config_digest", "{}"),
    ("tokenizer digest", "env.tokenizer_digest", "{}"),
    ("architecture", "architecture", "{}"),
    ("backend", "backend", "{}"),
    ("device", "device", "{}"),
    ("dtype", "dtype", "{}"),
    ("decoding", "decoding", "{}"),
    ("CPU", "env.cpu", "{}"),
    ("instruction sets", "env.cpu_instruction_sets", "{}"),
    ("cores", "env.cpu_cores", "{}"),
    ("usable CPUs", "env.cpu_available", "{}"),
    ("CPU quota", "env.cpu_quota", "{} CPUs"),
    ("CPU affinity", "env.cpu_affinity", "{}"),
    ("threads", "env.threads", "{}"),
    ("memory", "env.memory_gib", "{} GiB"),
    ("GPU", "env.gpu", "{}"),
    ("GPU driver", "env.gpu_driver", "{}"),
    ("system", "env.os", "{}"),
    ("Python", "env.python_version", "{}"),
    ("torch", "env.version.torch", "{}"),
    ("transformers", "env.version.transformers", "{}"),
    ("onnxruntime", "env.version.onnxruntime", "{}"),
    ("llmtrack", "env.llmtrack_version", "{}"),
    ("git commit", "env.git_commit", "{:.12}"),
)


@dataclass(frozen=True)
class Member:
    """A study with its runs.

    Attributes:
        experiment: its experiment.
        run_id: its run, or None if it was not completed.
        runs: runs of its scenarios, in table order.
        reading: their interpretation.
        table: their table, if already built.
    """

    experiment: Experiment
    run_id: str | None
    runs: Runs
    reading: Sequence[str] = ()
    table: Table | None = None


def study_report(study: Member, plots: Sequence[Plot], text_of: TextOf) -> Report:
    """Return the report of one study.

    Args:
        plots: drawn from its runs.
        text_of: read a text artifact by run id and path.
    """
    return Report(
        title=study.experiment.name,
        question=study.experiment.question,
        run_id=study.run_id or "",
        conditions=conditions(study.runs),
        takeaways=tuple(study.reading),
        sections=(section(replace(study, reading=()), plots, text_of),),
        call=call_of(study.runs),
    )


def suite_report(
    question: str,
    run_id: str | None,
    runs: Runs,
    takeaways: Sequence[str],
    sections: Sequence[Section],
    remarks: Sequence[str] = (),
) -> Report:
    """Return the report of a suite.

    Args:
        question: question of the whole suite.
        run_id: the suite's run.
        runs: runs of all its studies.
        takeaways: their joint interpretation.
        sections: one per study.
        remarks: notes on how it was measured.
    """
    return Report(
        title="suite",
        question=question,
        run_id=run_id or "",
        conditions=conditions(runs),
        takeaways=tuple(takeaways),
        sections=tuple(sections),
        summary={
            title: Rows(_on_page(table), _kinds(own))
            for (title, table), own in zip(tables_by_task(runs).items(), split_by_task(runs).values(), strict=True)
        },
        call=call_of(runs),
        remarks=tuple(remarks),
    )


def _on_page(table: Table) -> Table:
    """Return the columns that fit on a page; the sections below have all of them."""
    fitted = fit_to_width(table, _PAGE)
    if fitted is None or not fitted.dropped:
        return table
    titles = [title for key, title in zip(table.keys, table.titles, strict=True) if key in fitted.dropped]
    more = f"The tables of the experiments below also have: {', '.join(titles)}."
    return replace(fitted.table, notes=(*fitted.table.notes, more))


def section(study: Member, plots: Sequence[Plot], text_of: TextOf) -> Section:
    """Return a report's section on one study; see `study_report`."""
    experiment = study.experiment
    return Section(
        name=experiment.name,
        question=experiment.question,
        run_id=study.run_id or "",
        rows=rows_of(study.runs, experiment.table, study.table),
        reading=tuple(study.reading),
        plots=tuple(plots),
        samples=samples(study.runs, text_of),
        settings={name: str(value) for name, value in experiment.settings.items()},
    )


def rows_of(runs: Runs, own: OwnTable | None = None, table: Table | None = None) -> Rows:
    """Return the summary table of runs with the kind of each row."""
    return Rows(table or summary_table(runs, own=own), _kinds(runs))


def conditions(runs: Runs) -> tuple[tuple[str, str], ...]:
    """Return where, with what and when (UTC) runs were measured, as far as known."""
    found = []
    for label, column, form in FACTS:
        values = dict.fromkeys(value for run in runs if (value := run.get(column)) is not None)
        if values:
            found.append((label, ", ".join(form.format(value) for value in values)))
    if any(run.environment.get("git_dirty") == "true" for run in runs):
        found.append(("git state", "with changes that are not committed"))
    began = [run.start_time for run in runs if run.start_time]
    if began:
        found.insert(0, ("date", f"{min(began):%Y-%m-%d %H:%M} UTC"))
    return tuple(found)


def call_of(runs: Runs) -> Call | None:
    """Return a timed call to illustrate prefill and decoding, if there is one."""
    run = plain_call(runs)
    if run is None or run.params["max_new_tokens"] < 2:
        return None
    return Call(
        scenario=run.scenario,
        prompt_tokens=int(run.params["prompt_tokens_total"]),
        new_tokens=int(run.params["max_new_tokens"]),
        first_token_ms=run.metrics["time_to_first_token_ms"],
        inter_token_ms=run.metrics["inter_token_latency_ms"],
        weights_mib=run.metrics.get("model_size_mib"),
    )


def samples(runs: Runs, text_of: TextOf) -> tuple[GeneratedText, ...]:
    """Return the first generated texts; scenarios with the same output share one.

    Only the texts shown are read, one per output: reading thousands would take minutes.
    """
    names: dict[str, list[str]] = {}
    known: dict[tuple[str, str], str] = {}
    for run in runs.finished:
        if not run.has("output_digest"):
            continue
        output = (str(run.params["output_digest"]), run.text("model_id"))
        if output not in known:
            if len(names) == MOST_SAMPLES:
                continue
            known[output] = truncate(text_of(run.run_id, "sample.txt"), LONGEST_SAMPLE)
        if known[output].strip():
            names.setdefault(known[output], []).append(run.scenario)
    return tuple(GeneratedText(tuple(each), text) for text, each in names.items())


def plot_of(name: str, figure: Figure) -> Plot:
    """Render a figure; its titles become the alternative text."""
    titles = [axes.get_title(loc).replace("\n", " ") for axes in figure.axes for loc in ("left", "center")]
    buffer = io.BytesIO()
    save(figure, buffer)
    return Plot(name, ". ".join(filter(None, titles)) or name, buffer.getvalue())


def _kinds(runs: Runs) -> tuple[str, ...]:
    return tuple(map(_kind, runs))


def _kind(run: Run) -> str:
    if not run.is_finished:
        return "failed"
    if run.is_same_as:
        return "same_as"
    return "baseline" if run.baseline else ""
