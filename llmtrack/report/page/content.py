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
# Characters of a row that fit on a page of 1,280 pixels.
_PAGE_WIDTH = 150

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
        run_id: MLflow run of the study; None if it was not completed.
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
    """Collect the report of one study.

    Args:
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
    """Collect the report of a suite.

    Args:
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
            title: Rows(_on_page(table), tuple(map(_kind, group)))
            for (title, table), group in zip(tables_by_task(runs).items(), split_by_task(runs).values(), strict=True)
        },
        call=call_of(runs),
        remarks=tuple(remarks),
    )


def _on_page(table: Table) -> Table:
    """Drop the columns that do not fit on a page; the sections below have all of them."""
    fitted = fit_to_width(table, _PAGE_WIDTH)
    if fitted is None or not fitted.dropped:
        return table
    titles = [title for key, title in zip(table.keys, table.titles, strict=True) if key in fitted.dropped]
    more = f"The tables of the experiments below also have: {', '.join(titles)}."
    return replace(fitted.table, notes=(*fitted.table.notes, more))


def section(study: Member, plots: Sequence[Plot], text_of: TextOf) -> Section:
    """Collect a report's section on one study; see `study_report`."""
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
    """Lay out runs as a summary table, with the kind of each row."""
    return Rows(table or summary_table(runs, own=own), tuple(map(_kind, runs)))


def conditions(runs: Runs) -> tuple[tuple[str, str], ...]:
    """List where, with what and when (UTC) runs were measured, as far as known, each with its label."""
    facts = []
    for label, column, form in FACTS:
        values = dict.fromkeys(value for run in runs if (value := run.get(column)) is not None)
        if values:
            facts.append((label, ", ".join(form.format(value) for value in values)))
    if any(run.environment.get("git_dirty") == "true" for run in runs):
        facts.append(("git state", "with changes that are not committed"))
    starts = [run.start_time for run in runs if run.start_time]
    if starts:
        facts.insert(0, ("date", f"{min(starts):%Y-%m-%d %H:%M} UTC"))
    return tuple(facts)


def call_of(runs: Runs) -> Call | None:
    """Return the timed call that illustrates prefill and decoding, or None."""
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
    scenarios: dict[str, list[str]] = {}
    texts: dict[tuple[str, str], str] = {}
    for run in runs.finished:
        if not run.has("output_digest"):
            continue
        output = (str(run.params["output_digest"]), run.text("model_id"))
        if output not in texts:
            if len(scenarios) == MOST_SAMPLES:
                continue
            texts[output] = truncate(text_of(run.run_id, "sample.txt"), LONGEST_SAMPLE)
        if texts[output].strip():
            scenarios.setdefault(texts[output], []).append(run.scenario)
    return tuple(GeneratedText(tuple(names), text) for text, names in scenarios.items())


def plot_of(name: str, figure: Figure) -> Plot:
    """Render a figure; its titles become the alternative text."""
    titles = [axes.get_title(loc).replace("\n", " ") for axes in figure.axes for loc in ("left", "center")]
    buffer = io.BytesIO()
    save(figure, buffer)
    return Plot(name, ". ".join(filter(None, titles)) or name, buffer.getvalue())


def _kind(run: Run) -> str:
    if not run.is_finished:
        return "failed"
    if run.is_same_as:
        return "same_as"
    return "baseline" if run.baseline else ""
