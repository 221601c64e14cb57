"""The HTML report: well-formed, one file that loads nothing, every text escaped."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from llmtrack.experiment import Experiment
from llmtrack.report.page.content import (
    Member,
    conditions,
    plot_of,
    rows_of,
    samples,
    section,
    study_report,
    suite_report,
)
from llmtrack.report.page.html import (
    MOST_STEPS,
    WIDTH,
    Call,
    GeneratedText,
    Plot,
    Report,
    Section,
    render_report,
    timeline,
)
from llmtrack.report.tables.summary import summary_table, tables_by_task
from tests.report.artificial_runs import interval, make_runs, replace_values, run

ATTACK = "<script>alert(1)</script>"
VOID = {"meta", "img", "br", "hr", "link", "input"}
# Elements of SVG that the templates close themselves.
CLOSED = {"rect", "line", "path"}
PNG = b"\x89PNG one"


class Page(HTMLParser):
    """Parse a page; fails if tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in CLOSED, f"{tag} is not closed"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in CLOSED, tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


RUNS = make_runs(
    run(
        "plain",
        experiment="baseline",
        study_id="b",
        baseline=True,
        total_latency_s=2.0,
        time_to_first_token_ms=200.0,
        inter_token_latency_ms=60.0,
        model_size_mib=513.1,
        output_digest="d",
        **interval("tokens_per_sec", 16.0, 15.0, 17.0),
    ),
    run("float32", baseline=True, tokens_per_sec=16.0, output_digest="d"),
    run("bfloat16", dtype="bfloat16", status="FAILED", outcome="failed", failure="load", reason=ATTACK),
    run("float16", dtype="float32 (forced on CPU)", outcome="same_as", same_as="float32", reason="the same"),
)


def part(name: str, **values: object) -> Section:
    defaults: dict[str, object] = {
        "name": name,
        "question": f"What of {ATTACK}?",
        "run_id": "0123456789abcdef",
        "rows": rows_of(RUNS),
        "reading": (f"It says {ATTACK}.",),
        "plots": (Plot("one", f"{ATTACK} drawn", PNG), Plot("two", "two drawn", PNG + b" two")),
        "samples": (GeneratedText(("plain", "float32"), f"{ATTACK}\n  second line"),),
        "settings": {"prompt": ATTACK, "model": "packaged:smollm2"},
    }
    return Section(**{**defaults, **values})  # type: ignore[arg-type]


def report(**values: object) -> Report:
    sections = (part("baseline"), part("precision"))
    whole = suite_report(f"How {ATTACK}?", "fedcba", RUNS, (f"Take {ATTACK}",), sections, (f"Mind {ATTACK}",))
    return replace(whole, **values)  # type: ignore[arg-type]


@pytest.mark.slow(1)
def test_the_page_is_well_formed_and_complete():
    page = Page(render_report(report()))
    for text in (
        "Takeaways",
        "Conditions",
        "All runs",
        "Prefill and decode",
        "Glossary",
        "What the model wrote plain, float32",
        "It says",
        "Study run: 0123456789abcdef",
        "Run of this report: fedcba",
        "One call of plain, drawn to scale: 16 prompt tokens in, 32 new tokens out, 2.06 s.",
        "prefill 200 ms (10 %)",
        "decode 31 × 60.0 ms (90 %)",
        "at 80 tokens/s",
        "at 16.7 tokens/s",
        "weights (513 MiB)",
    ):
        assert text in page.text, text


@pytest.mark.slow(1)
def test_the_page_loads_nothing():
    text = render_report(report())
    page = Page(text)
    assert not any(page.all(tag) for tag in ("script", "link", "a", "iframe", "object", "base", "form"))
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert name not in ("href", "xlink:href", "srcset", "action", "data")
            assert name != "src" or str(value).startswith("data:image/png;base64,")
            assert not name.startswith("on")
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.slow(1)
def test_every_text_is_escaped():
    text = render_report(report())
    assert "<script" not in text
    page = Page(text)
    # Question, remark, takeaway; then of both sections: question, reading, reason, alt text, sample, setting.
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3 + 2 * 6
    assert f"{ATTACK} second line" in page.text


@pytest.mark.slow(1)
def test_a_text_cannot_escape_its_attribute():
    quote = '" onload="alert(1)'
    page = Page(render_report(report(sections=(part("one", plots=(Plot("p", quote, PNG),)),))))
    assert [image["alt"] for image in page.all("img")] == [quote]


def test_every_plot_is_embedded_with_its_alternative_text():
    images = Page(render_report(report())).all("img")
    assert [image["alt"] for image in images] == [f"{ATTACK} drawn", "two drawn"] * 2
    embedded = [base64.b64decode(str(image["src"]).split(",")[1]) for image in images]
    assert embedded == [PNG, PNG + b" two"] * 2


def test_rows_are_marked_by_kind_and_numbers_right_aligned():
    text = render_report(report(sections=()))
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = re.findall(r'<tr class="([^"]*)">', body)
    assert [row.split()[:1] for row in rows] == [["baseline"], ["baseline"], ["failed"], ["same_as"]]
    assert "group" in rows[1]
    assert '<td class="number">16.00</td>' in body
    assert '<span class="badge failed">FAILED (load)</span>' in body
    assert "bfloat16 failed: &lt;script&gt;" in text


def test_results_precede_conditions():
    text = render_report(report(sections=()))
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", text)
    assert heads[:4] == ["experiment", "scenario", "against baseline", "latency s"]
    assert heads.index("tokens/s") < heads.index("dtype") < heads.index("run")


def test_light_and_dark():
    assert "prefers-color-scheme: dark" in render_report(report())


def test_a_report_may_lack_timed_calls_plots_and_samples():
    bare = part("perplexity", plots=(), samples=(), settings={}, reading=())
    page = Page(render_report(report(call=None, summary={}, takeaways=(), sections=(bare,), remarks=())))
    assert "Prefill and decode" not in page.text
    assert "All runs" not in page.text
    assert not page.all("img")
    assert [details.get("class") for details in page.all("details")] == ["conditions"]


CALL = Call("plain", prompt_tokens=16, new_tokens=5, first_token_ms=100.0, inter_token_ms=25.0)


def test_the_timeline_is_to_scale():
    drawn = timeline(CALL)
    assert drawn.prefill == WIDTH / 2
    assert drawn.steps == tuple((WIDTH / 2 + number * WIDTH / 8, WIDTH / 8) for number in range(4))
    assert len(drawn.cells) == 16


def test_many_steps_are_one_block_and_many_tokens_are_32_squares():
    drawn = timeline(replace(CALL, new_tokens=MOST_STEPS + 2, prompt_tokens=5000))
    ((left, width),) = drawn.steps
    assert left + width == pytest.approx(WIDTH)
    assert len(drawn.cells) == 32


def test_a_call_of_one_new_token_has_nothing_to_decode():
    assert suite_report("?", None, replace_values(RUNS, max_new_tokens=1), (), ()).call is None


def test_conditions_are_read_from_the_runs():
    facts = {
        "cpu": "A <CPU>",
        "memory_gib": "23.5",
        "git_commit": "0123456789abcdef0123",
        "git_dirty": "true",
    }
    runs = replace_values(RUNS, **{f"env.{name}": value for name, value in facts.items()})
    facts_shown = dict(conditions(runs))
    assert facts_shown["date"] == "2026-11-28 10:00 UTC"
    assert facts_shown["CPU"] == "A <CPU>"
    assert facts_shown["memory"] == "23.5 GiB"
    assert facts_shown["git commit"] == "0123456789ab"
    assert facts_shown["git state"] == "with changes that are not committed"
    assert facts_shown["dtype"] == "float32, bfloat16, float32 (forced on CPU)"
    assert "GPU" not in facts_shown


def test_the_revision_is_among_the_conditions():
    runs = make_runs(run("a", revision="abc123"), run("b", revision="abc123"))
    assert dict(conditions(runs))["revision"] == "abc123"


def test_equal_texts_are_shown_once_and_long_ones_truncated():
    texts = {"id-plain": "once upon", "id-float32": "once upon"}
    assert samples(RUNS, lambda run_id, _: texts[run_id]) == (GeneratedText(("plain", "float32"), "once upon"),)
    (long,) = samples(RUNS[:1], lambda *_: "a" * 5000)
    assert len(long.text) == 1200
    assert long.text.endswith("…")
    assert samples(RUNS, lambda *_: "  \n") == ()


def test_only_the_texts_shown_are_read_one_per_output():
    """Of 1,000 runs, 12 texts are read; runs with the same output share its text."""
    numbers = range(1000)
    many = replace_values(
        [RUNS[0]] * 1000,
        run_id=[f"id-{n}" for n in numbers],
        scenario=[f"s{n}" for n in numbers],
        output_digest=[f"{n % 500:03}" for n in numbers],
    )
    read = []

    def text_of(run_id, path):
        read.append(run_id)
        return f"text {run_id}"

    shown = samples(many, text_of)
    assert read == [f"id-{n}" for n in range(12)]
    assert [text.scenarios for text in shown] == [(f"s{n}", f"s{n + 500}") for n in range(12)]


def figure(title: str) -> Figure:
    drawn = Figure()
    drawn.subplots().set_title(title, loc="left")
    return drawn


EXPERIMENT = Experiment("baseline", "How fast?", (), lambda *_: {}, lambda _: [], {"max_new_tokens": 32})


def test_a_plots_title_is_its_alternative_text():
    own = section(
        Member(EXPERIMENT, "id", RUNS, ["one"]),
        [plot_of("latency", figure("Latency of the call"))],
        lambda *_: "",
    )
    (plot,) = own.plots
    assert (plot.name, plot.alt, plot.png[:4]) == ("latency", "Latency of the call", b"\x89PNG")
    assert own.settings == {"max_new_tokens": "32"}
    assert own.rows.kinds == ("baseline", "baseline", "failed", "same_as")


def test_the_report_of_one_study_has_one_table():
    page = Page(render_report(study_report(Member(EXPERIMENT, "id", RUNS, ["It is fast."]), [], lambda *_: "")))
    assert len(page.all("table")) == 1
    assert "It is fast." in page.text


@pytest.mark.slow(1)
def test_the_answer_comes_first_and_conditions_are_collapsed():
    text = render_report(report())
    order = [text.index(word) for word in ("Takeaways", "Conditions: model", "All runs", 'class="experiment"')]
    assert order == sorted(order)
    assert text.index("<details") < text.index('<dl class="facts">')
    study = study_report(Member(EXPERIMENT, "fedcba", RUNS, ("Take float32.",)), (), lambda *of: "")
    text = render_report(study)
    assert text.index("<h2>Answer</h2>") < text.index("Take float32.") < text.index("<table>")
    assert text.count("Take float32.") == 1


def test_the_table_of_a_suite_fits_on_a_page_and_names_its_omitted_columns():
    """Too many columns would push conditions and the links to runs out of sight."""
    names = ("total_latency_s", "tokens_per_sec", "avg_latency_per_token_ms", "time_to_first_token_ms", "pad_share")
    more = ("inter_token_latency_ms", "batch_latency_s", "latency_per_sample_s", "peak_memory_mib", "model_size_mib")
    wide = make_runs(
        *(
            run(
                f"scenario_{n}",
                baseline=n == 1,
                batch_size=n,
                prompt_tokens=n,
                max_new_tokens=n,
                use_cache=n == 1,
                pad_to_multiple=n,
                **dict.fromkeys((*names, *more), 12_345.678 + n),
            )
            for n in (1, 2)
        )
    )
    whole = summary_table(wide)
    (rows,) = suite_report("?", None, wide, (), ()).summary.values()
    assert {"scenario", "tokens/s", "against baseline"} <= set(rows.table.titles)
    columns = zip(rows.table.titles, *rows.table.rows, strict=True)
    assert sum(min(28, max(map(len, column))) for column in columns) <= 150, "texts wrap"
    omitted = set(whole.titles) - set(rows.table.titles)
    assert "ms/token" in omitted
    (note,) = rows.table.notes
    assert set(note.partition("also have: ")[2].removesuffix(".").split(", ")) == omitted
    narrow = suite_report("?", None, RUNS, (), ()).summary
    assert {title: rows.table for title, rows in narrow.items()} == tables_by_task(RUNS)


@pytest.mark.slow(1)
def test_runs_link_to_their_mlflow_pages():
    page = Page(render_report(report(runs_at="http://127.0.0.1:5000/#/experiments/1/runs/", start="mlflow ui")))
    links = [attributes["href"] for attributes in page.all("a")]
    assert f"http://127.0.0.1:5000/#/experiments/1/runs/{RUNS[0].run_id}" in links
    assert all(str(link).startswith("http://127.0.0.1:5000/#/experiments/1/runs/") for link in links)
    assert all(attributes["rel"] == "noopener noreferrer" for attributes in page.all("a"))
