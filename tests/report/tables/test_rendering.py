"""Every table at the widths of real terminals: no line is wider, no number is truncated, and dropped columns are named."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from functools import cache

import pytest
from rich.cells import cell_len
from rich.console import Console

from experiments import backends, quantization, tune
from llmtrack import metrics as schema
from llmtrack.cli.doctor import Finding, render_findings
from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.gate import GateResult, PairCheck, check_samples, decide_checks, parse_rules
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.selection import pair_runs
from llmtrack.experiment import OwnTable
from llmtrack.report.gate import gate_table
from llmtrack.report.page.output import write_report
from llmtrack.report.pareto import pareto_table
from llmtrack.report.recommendation import render_recommendation
from llmtrack.report.show import Layout, listing_table, metrics_block, show
from llmtrack.report.tables.differences import differences_table
from llmtrack.report.tables.picture import to_figure
from llmtrack.report.tables.rendering import STAY, fit_to_width, print_table, to_markdown, to_rich, without_constants
from llmtrack.report.tables.summary import split_by_task, summary_table, tables_by_task
from llmtrack.report.tables.table import DASH, Table, with_differing_params
from llmtrack.tracked.frames import column_names
from llmtrack.tracked.runs import Runs
from tests.report.artificial_runs import BASE, interval, make_runs, replace_values, run, table_of

WIDTHS = (60, 80, 100, 120, 200)

EVERYTHING = {
    metric.name: 1234.5678 if metric.unit != "-" else 0.98765
    for metric in schema.METRICS
    if metric.shown and metric.name not in ("perplexity", "loss")
}
SPREAD = interval("tokens_per_sec", 1234.56, 1200.0, 1300.0) | interval("decode_tokens_per_sec", 98.76, 90.0, 99.0)


@cache
def _many() -> Runs:
    """Return runs that differ in everything, with a long name, failure and device."""
    rows = [run("float32", task="generate", baseline=True, **(EVERYTHING | SPREAD))]
    for number, name in enumerate(("bfloat16", "int8-weight-only", "a_scenario_whose_name_" + "goes_on_" * 9)):
        rows.append(
            run(
                name,
                run_id=f"{number:032x}",
                task="generate",
                model_id=f"organization/a-model-of-some-size-{number}B-Instruct",
                dtype=f"bfloat16 (asked for float{number})",
                quantization=f"int8-{number}",
                backend=("torch", "onnx", "llamacpp")[number],
                device=f"cuda:{number}",
                prompt_tokens=16 * number,
                batch_size=2**number,
                threads=number + 1,
                block_size=32 * number,
                **{key: value * (number + 2) for key, value in {**EVERYTHING, **SPREAD}.items()},
            )
        )
    rows.append(run("broken", task="generate", status="FAILED", failure="out_of_memory", reason="it needs 99 GiB " * 9))
    rows += [
        run(name, task="perplexity", experiment="perplexity", perplexity=value, loss=2.9, protocol="rolling")
        for name, value in (("score", 18.744), ("score-int8", 18.91))
    ]
    rows.append(run("trained", task="train", experiment="training", perplexity=9.0, perplexity_before=99.0))
    return make_runs(*rows)


def _raced() -> Runs:
    """Return candidates of a tuning, each with a long reason."""
    places = ("winner", "equal", "dropped", "dropped", "open", "dropped", "dropped", "dropped")
    return replace_values(
        _many(),
        tuned_for="decode_tokens_per_sec",
        race_place=list(places),
        race_reason=[f"slower than the best by 12.{n} % (9.8 to 14.7), told in round 4" for n in range(8)],
    )


def _pairs():
    runs = _many()
    pairs, _ = pair_runs(runs[:1], runs[1:4])
    return pairs


def _gate() -> Table:
    rules = parse_rules(["tokens_per_sec < -5%", "peak_memory_mib > +10%"])
    checks = [
        (pair, check_samples(rule, [9.0, 10.0, 11.0] * 3, [5.0, 6.0, 7.0] * 3)) for pair in _pairs() for rule in rules
    ]
    decided = decide_checks([check for _, check in checks])
    pair_checks = tuple(PairCheck(pair, check) for (pair, _), check in zip(checks, decided, strict=True))
    return gate_table(GateResult(pair_checks, ("a note of some length that goes on and on " * 4,)))


def _differences() -> Table:
    pairs = _pairs()
    return differences_table(compare_pairs(pairs, None, ("left over",)))


def _pareto() -> Table:
    return pareto_table(gather_candidates(_many()), ("tokens_per_sec", "perplexity", "peak_memory_mib"))


TABLES = {
    "everything": lambda: summary_table(_many()),
    "of one experiment, with every param": lambda: with_differing_params(summary_table(_many()[:5]), _many()[:5]),
    "own table": lambda: summary_table(
        _many()[:5],
        own=OwnTable(("file_size_mib", "tokens_per_sec", "perplexity"), ("tokens_per_sec", "perplexity")),
    ),
    **{
        f"as {name} shows it": lambda own=own: summary_table(_many()[:5], own=own)
        for name, own in (("backends", backends.TABLE), ("quantization", quantization.TABLE))
    },
    "as tune shows it": lambda: summary_table(_raced(), own=tune.TABLE),
    "one run": lambda: summary_table(_many()[:1]),
    "no rows": lambda: listing_table(_many()[:0]),
    "runs": lambda: listing_table(_many()),
    "runs, every column": lambda: listing_table(_many(), column_names(_many())),
    "gate": _gate,
    "against a baseline": _differences,
    "Pareto": _pareto,
    **{f"suite: {name}": lambda name=name: tables_by_task(_many())[name] for name in split_by_task(_many())},
}
# They cannot change, and making one takes longer than fitting it.
TABLES = {name: cache(make) for name, make in TABLES.items()}


def _printed(table: Table, width: int, terminal: bool = True, **options) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, emoji=False)
    print_table(
        console,
        "a title",
        table,
        ["a line that says what this means, at some length, as they do " * 2],
        **options,
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def _widest(text: str) -> int:
    return max(map(cell_len, text.splitlines()))


@pytest.mark.parametrize("width", [40, *WIDTHS])
@pytest.mark.parametrize("name", TABLES)
def test_no_line_of_a_table_is_wider_than_the_terminal(name, width):
    table = TABLES[name]()
    text = _printed(table, width)
    assert _widest(text) <= width
    fitted = fit_to_width(table, width)
    if fitted is None:
        return
    for index, numeric in enumerate(fitted.table.numeric):
        for row in fitted.table.rows:
            assert not numeric or row[index] in text, "a figure is shown whole"
    assert "…" not in text
    remaining = len(table.titles) - len(fitted.dropped)
    assert (f"+{len(fitted.dropped)} column" in text) == bool(fitted.dropped)
    joined, others = " ".join(text.split()), len(fitted.dropped) - 6
    assert all(key in joined for key in fitted.dropped[:6])
    assert (f" and {others} more)" in joined) == (others > 0)
    assert remaining >= len(fitted.table.titles)


@pytest.mark.parametrize("name", TABLES)
def test_pipes_files_and_wide_output_show_every_cell(name):
    table = TABLES[name]()
    for text in (_printed(table, 80, terminal=False), _printed(table, 80, wide=True)):
        assert all(" ".join(title.split()) in text for title in table.titles)
        assert "columns: --wide" not in text
        assert all(cell in text for row in table.rows for cell in row[:-1])


@pytest.mark.slow(1)
def test_columns_are_dropped_in_the_order_of_their_entries():
    table = summary_table(_many()[:5])
    dropped_by_width = [set(fit_to_width(table, width).dropped) for width in range(400, NARROW - 1, -1)]
    for more_room, less_room in itertools.pairwise(dropped_by_width):
        assert more_room <= less_room
    dropped = dropped_by_width[-1]
    importance = {entry.name: entry.shown.priority for entry in (*schema.METRICS, *schema.PARAMS) if entry.shown}
    staying = [key for key in fit_to_width(table, NARROW).table.keys if key not in STAY]
    assert dropped
    assert all(importance[key] > importance[other] for key in staying for other in dropped)


NARROW = 60


def test_no_two_columns_have_the_same_importance():
    # One that states none leaves first.
    keeps = [
        entry.shown.priority for entry in (*schema.METRICS, *schema.PARAMS) if entry.shown and entry.shown.priority
    ]
    assert len(set(keeps)) == len(keeps)


def test_shared_values_move_above_the_table_and_empty_columns_are_dropped():
    table = Table(
        ("device: cpu",),
        ("scenario", "tokens/s", "perplexity", "loss"),
        (False, True, True, True),
        (("a", "1", "18.7", DASH), ("b", "2", "18.7", DASH)),
        ("1", "2"),
        keys=("scenario", "tokens_per_sec", "perplexity", "loss"),
    )
    shown = without_constants(table)
    assert shown.titles == ("scenario", "tokens/s")
    assert shown.conditions == ("device: cpu", "perplexity: 18.7")
    single = replace(table, rows=table.rows[:1], run_ids=("1",))
    assert without_constants(single) == single, "of one row everything is its own"


def test_below_60_columns_each_row_is_a_complete_block():
    table = summary_table(_many()[:3])
    text = _printed(table, 45)
    joined = " ".join(text.split())
    for row in without_constants(table).rows:
        assert all(" ".join(cell.split()) in joined for cell in row if len(cell) < 20)
    assert text.index("bfloat16") < text.index("int8-weight-only")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_blocks_and_lists_of_other_commands_fit_too(width):
    findings = [Finding("mlflow run: local", "missing", "python on PATH is elsewhere " * 6, "activate it " * 9)]
    recommendation = recommend(_many(), Limits(0.01, 2**30))
    texts = [
        "\n".join(metrics_block(_many()[0], width)),
        render_findings(findings, width=width),
        render_recommendation(replace(recommendation, notes=("a note " * 30,)), width=width),
    ]
    assert max(map(_widest, texts)) <= width
    assert "\n" not in render_findings(findings[:1]).split("->")[0].strip(), "in a pipe a finding is a line"
    assert f" {'x' * 40} found" in render_findings([Finding("x" * 40, "ok", "found")]), (
        "a long topic is not joined to its text"
    )


@pytest.mark.slow(2)
def test_timing_quality_and_training_are_separate_tables(tmp_path):
    tables = tables_by_task(_many())
    assert list(tables) == ["timing", "quality", "training"]
    assert "perplexity" not in tables["timing"].titles
    assert "tokens/s" not in tables["quality"].titles
    assert sum(len(table.rows) for table in tables.values()) == len(_many())
    for table in tables.values():
        for index in range(1, len(table.titles) - 1):
            assert any(row[index] != DASH for row in table.rows), "no column of dashes"
    assert len(to_figure(tables, "suite").axes) == 3
    files = write_report(tmp_path, "suite", tables, _many())
    assert [line for line in files["table.md"].read_text().splitlines() if line.startswith("#")] == [
        "### timing",
        "### quality",
        "### training",
    ]


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("workload", "expected"),
    [("w1", "1.50x tokens/s (inconclusive: one value each)"), ("w2", "other work"), (None, "other work")],
)
def test_a_change_is_shown_for_equal_work_only(workload, expected):
    base = run("plain", baseline=True, workload_id="w1", tokens_per_sec=10.0)
    table = summary_table(make_runs(base, run("one_token", workload_id=workload, tokens_per_sec=15.0)))
    assert table.rows[1][-1] == expected


def test_a_run_equal_to_another_adds_no_column():
    rows = [run("a", vocab_size=512), run("b", vocab_size=512), run("c", outcome="same_as", same_as="a")]
    table = summary_table(make_runs(*rows))
    assert with_differing_params(table, make_runs(*rows)).titles == table.titles


def test_a_narrow_tuning_table_keeps_the_results_of_the_race():
    fitted = fit_to_width(summary_table(_raced()[:3], own=tune.TABLE), 120)
    assert {"scenario", "race_place", "race_reason", "tokens_per_sec"} <= set(fitted.table.keys)


def test_markdown_escapes_what_would_break_it():
    table = table_of(BASE, run("a|b\nc", tokens_per_sec=9.0, run_id="id2"))
    lines = to_markdown(table, ("#/1", "#/2")).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    assert lines[start + 1].count("|") == lines[start].count("|")
    last = lines[start + 3]
    assert last.startswith("| [a\\|b c](#/2) |")
    assert last.replace("\\|", "").count("|") == lines[start].count("|")


def test_markdown_has_conditions_rows_and_notes():
    failed = run("big", status="FAILED", failure="load", reason="gone")
    text = to_markdown(table_of(BASE, failed))
    assert text.index("device: cpu") < text.index("| scenario") < text.index("| big") < text.index("- big failed: gone")


def test_a_wide_table_loses_no_number_on_a_narrow_terminal():
    rows = [
        BASE,
        run("a_rather_long_scenario_name", dtype="bfloat16", total_latency_s=1234.5, peak_memory_mib=98765.0),
    ]
    console = Console(file=io.StringIO(), width=40)
    print_table(console, "title [x]", table_of(*rows), ["a [reading]"])
    printed = console.file.getvalue()
    for text in ("1,234.500", "98,765", "a_rather_long_scenario_name", "a [reading]", "title [x]"):
        assert text in printed


def test_numbers_are_right_aligned():
    drawn = to_rich(table_of(BASE))
    justify = {str(column.header): column.justify for column in drawn.columns}
    assert (justify["tokens/s"], justify["scenario"], justify["against baseline"]) == (
        "right",
        "left",
        "left",
    )


@pytest.mark.slow(1)
def test_every_table_shows_a_requested_column_and_refuses_an_unknown_one():
    from llmtrack.errors import UsageError

    for table, key in ((_gate(), "baseline"), (_differences(), "candidate"), (_pareto(), "perplexity")):
        console = Console(file=io.StringIO(), width=200)
        show(console, "", table, Layout(columns=(key,)))
        heading = console.file.getvalue().strip().splitlines()
        assert table.titles[table.keys.index(key)] in " ".join(heading)
        assert len(table.titles) > 4
        with pytest.raises(UsageError, match="nonsense"):
            show(console, "", table, Layout(columns=("nonsense",)))
