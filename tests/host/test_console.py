"""All text leaves by one way, on which nothing in it is obeyed."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from rich.table import Table as RichTable

import llmtrack
from llmtrack.host.console import as_json, console_of, emit, keep_text, make_folder, print_text, shown
from llmtrack.report.tables.rendering import render
from tests.report.test_escape import table_of

# Of a terminal's commands, of the direction of text, of line ends that are none of ours, half a character.
OBEYED = (
    "\x1b[31m",
    "\x9b31m",
    "\x9d0;title\x07",
    "\u202eabc",
    "\u2066",
    "\r",
    "\b",
    "\x7f",
    "\u2028",
    "\ud800",
    "\ufeff",
)
HOSTILE = "".join(OBEYED)
CHARACTERS = set(HOSTILE) - set("[31m0;titleabc")


@pytest.mark.parametrize("err", [False, True])
def test_what_is_told_is_shown(capsys, err):
    print_text(f"run {HOSTILE}\tname\nend", err=err)
    out = "".join(capsys.readouterr())
    assert not CHARACTERS & set(out)
    assert out.startswith("run \N{REPLACEMENT CHARACTER}[31m")
    assert out.endswith("\tname\nend\n")


def test_what_is_told_of_an_error_holds_no_credentials(capsys, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "abcdefgh12345")
    print_text("error: abcdefgh12345 is refused", err=True)
    assert capsys.readouterr().err == "error: *** is refused\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_obeys_its_own_styles_only(terminal):
    stream = io.StringIO()
    console = console_of(
        file=stream,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        width=200,
        highlight=False,
    )
    drawn = RichTable("head" + HOSTILE)
    drawn.add_row(HOSTILE)
    for each in (HOSTILE, drawn):
        console.print(each, style="red", markup=False)
    own = {"\x1b"} if terminal else set()
    assert not (CHARACTERS - own) & set(stream.getvalue())
    assert "\x1b[31m\x1b[31m" not in stream.getvalue()
    emit(console, HOSTILE)
    assert not (CHARACTERS - own) & set(stream.getvalue())


def test_a_file_is_written_as_it_is_shown(tmp_path):
    keep_text(tmp_path / "a.csv", HOSTILE)
    assert not CHARACTERS & set((tmp_path / "a.csv").read_text(encoding="utf-8"))


def test_a_folder_of_more_levels_than_python_counts_is_refused_as_the_system_would(tmp_path, monkeypatch):
    def too_deep(path, *given, **named):
        raise RecursionError

    monkeypatch.setattr(Path, "mkdir", too_deep)
    with pytest.raises(OSError, match="File name too long") as caught:
        make_folder(tmp_path / "a/b")
    assert caught.value.filename == str(tmp_path / "a/b")


def test_json_loses_nothing(tmp_path):
    text = as_json({"name": HOSTILE, "é": ["–"]})
    assert not CHARACTERS & set(text)
    assert shown(text) == text
    assert json.loads(text) == {"name": HOSTILE, "é": ["–"]}
    assert "–" in text


@pytest.mark.parametrize("style", ["table", "csv", "json", "markdown", "html", "latex"])
@pytest.mark.parametrize("name", OBEYED, ids=ascii)
def test_no_format_of_a_table_holds_what_is_obeyed(style, name):
    text = shown(render(table_of(name)[0], style, name))
    assert not CHARACTERS & set(text)
    if style == "html":
        assert not CHARACTERS & set(render(table_of(name)[0], style, name))


SOURCES = sorted(Path(llmtrack.__file__).parent.rglob("*.py"))
WAY_OUT = {"host/console.py"}
# A page of our own docs.
OURS = {"metrics/__main__.py"}


def direct(tree: ast.AST) -> list[int]:
    """Return the lines that write text to a terminal or a console's stream by themselves."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        constant = all(isinstance(each, ast.Constant) for each in node.args)
        writes = called in ("print", "click.echo", "click.secho", "echo", "secho", "Console", "rich.print")
        streams = called.endswith((".file.write", "stdout.write", "stderr.write", "__stderr__.write"))
        if (writes or streams) and not (called == "print" and constant):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_module_has_a_way_of_its_own(path):
    name = path.relative_to(Path(llmtrack.__file__).parent).as_posix()
    if name not in WAY_OUT | OURS:
        assert direct(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_the_rule_sees_each_way():
    for way in ("print(name)", "click.echo(x)", "console.file.write(x)", "sys.stderr.write(x)", "Console()"):
        assert direct(ast.parse(way)) == [1]


@pytest.mark.parametrize("given", ["a" * 100_000, "word " * 20_000])
def test_a_long_value_hides_neither_cause_nor_remedy(given, capsys):
    print_text(f"error: {given!r} is no model: give a folder", err=True)
    said = capsys.readouterr().err
    assert said.startswith("error: '")
    assert said.endswith("is no model: give a folder\n")
    assert len(said) < 1000
