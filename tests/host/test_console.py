"""Text is printed and written by one module, without control characters."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from rich.table import Table as RichTable

import llmtrack
from llmtrack.host.console import (
    emit,
    make_folder,
    neutral_console,
    neutral_json,
    neutralize,
    print_text,
    write_neutral,
)
from llmtrack.report.tables.rendering import render
from tests.report.test_escape import table_of

# Terminal commands, text direction, foreign line ends, half a character.
CONTROLS = (
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
HOSTILE = "".join(CONTROLS)
CHARACTERS = set(HOSTILE) - set("[31m0;titleabc")


@pytest.mark.parametrize("err", [False, True])
def test_printed_text_has_no_control_characters(capsys, err):
    print_text(f"run {HOSTILE}\tname\nend", err=err)
    out = "".join(capsys.readouterr())
    assert not CHARACTERS & set(out)
    assert out.startswith("run \N{REPLACEMENT CHARACTER}[31m")
    assert out.endswith("\tname\nend\n")


def test_credentials_in_an_error_are_redacted(capsys, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "abcdefgh12345")
    print_text("error: abcdefgh12345 is refused", err=True)
    assert capsys.readouterr().err == "error: *** is refused\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_emits_only_its_own_control_codes(terminal):
    stream = io.StringIO()
    console = neutral_console(
        file=stream, force_terminal=terminal, color_system="standard" if terminal else None, width=200, highlight=False
    )
    table = RichTable("head" + HOSTILE)
    table.add_row(HOSTILE)
    for content in (HOSTILE, table):
        console.print(content, style="red", markup=False)
    styles = {"\x1b"} if terminal else set()
    assert not (CHARACTERS - styles) & set(stream.getvalue())
    assert "\x1b[31m\x1b[31m" not in stream.getvalue()
    emit(console, HOSTILE)
    assert not (CHARACTERS - styles) & set(stream.getvalue())


def test_a_written_file_has_no_control_characters(tmp_path):
    write_neutral(tmp_path / "a.csv", HOSTILE)
    assert not CHARACTERS & set((tmp_path / "a.csv").read_text(encoding="utf-8"))


def test_a_folder_with_too_many_levels_for_python_raises_an_oserror(tmp_path, monkeypatch):
    def too_deep(path, *args, **kwargs):
        raise RecursionError

    monkeypatch.setattr(Path, "mkdir", too_deep)
    with pytest.raises(OSError, match="File name too long") as caught:
        make_folder(tmp_path / "a/b")
    assert caught.value.filename == str(tmp_path / "a/b")


def test_json_escapes_controls_and_loses_nothing():
    text = neutral_json({"name": HOSTILE, "é": ["–"]})
    assert not CHARACTERS & set(text)
    assert neutralize(text) == text
    assert json.loads(text) == {"name": HOSTILE, "é": ["–"]}
    assert "–" in text


@pytest.mark.parametrize("style", ["table", "csv", "json", "markdown", "html", "latex"])
@pytest.mark.parametrize("name", CONTROLS, ids=ascii)
def test_no_table_format_contains_control_characters(style, name):
    text = neutralize(render(table_of(name)[0], style, name))
    assert not CHARACTERS & set(text)
    if style == "html":
        assert not CHARACTERS & set(render(table_of(name)[0], style, name))


# The console itself, and a page of our own docs.
ALLOWED = {"host/console.py", "metrics/__main__.py"}


def direct_output(source: str) -> list[int]:
    """Return the lines that write text to a terminal or a stream without `host.console`."""
    lines = []
    # Most modules write nothing, and reading every call takes long.
    writes_any = any(word in source for word in ("print", "echo", "Console", "write"))
    for node in ast.walk(ast.parse(source)) if writes_any else ():
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        constant = all(isinstance(argument, ast.Constant) for argument in node.args)
        writes = called in ("print", "click.echo", "click.secho", "echo", "secho", "Console", "rich.print")
        streams = called.endswith((".file.write", "stdout.write", "stderr.write", "__stderr__.write"))
        if (writes or streams) and not (called == "print" and constant):
            lines.append(node.lineno)
    return lines


@pytest.mark.slow(1)
def test_modules_print_only_by_the_console():
    package = Path(llmtrack.__file__).parent
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    output = {name: direct_output(source) for name, source in sources.items() if name not in ALLOWED}
    assert len(output) > 200
    assert {name: lines for name, lines in output.items() if lines} == {}


def test_direct_output_is_detected():
    for call in ("print(name)", "click.echo(x)", "console.file.write(x)", "sys.stderr.write(x)", "Console()"):
        assert direct_output(call) == [1]


@pytest.mark.parametrize("value", ["a" * 100_000, "word " * 20_000])
def test_a_long_value_hides_neither_cause_nor_remedy(value, capsys):
    print_text(f"error: {value!r} is no model: give a folder", err=True)
    message = capsys.readouterr().err
    assert message.startswith("error: '")
    assert message.endswith("is no model: give a folder\n")
    assert len(message) < 1000
