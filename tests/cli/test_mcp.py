"""`llmtrack mcp`: read-only tools over the functions of the commands, called by a real client over stdio."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmtrack.cli import main, mcp
from llmtrack.cli.mcp import MAX_ANSWERS, Tools
from llmtrack.errors import UsageError
from llmtrack.tracking.uri import sqlite_path
from tests.decide.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    filled_once,
    measured,
    uri,
)
from tests.search_path import with_folders

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"list_studies", "compare", "recommend", "gate", "history"}
SLOWER = 1.5


@pytest.fixture
def studies(measured):  # noqa: F811
    """Measure two studies of the same work, the second slower by a half."""
    return measured((1, 1.0), (2, SLOWER))


def command(*words: str, uri: str) -> Any:  # noqa: F811
    """Return a command's JSON output."""
    done = CliRunner().invoke(main, [*words, "--format", "json", "--tracking-uri", uri])
    assert done.exit_code in (0, 1, 3), done.output
    return json.loads(done.stdout)


def fingerprint(uri: str) -> dict[str, str]:  # noqa: F811
    folder = sqlite_path(uri).parent
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow(3)
def test_studies_are_listed_newest_first(studies, uri):  # noqa: F811
    listed = Tools(uri).list_studies()
    assert [study.study_id for study in listed] == [study.study_id for study in reversed(studies)]
    assert {(study.experiment, study.status, study.scenarios_measured) for study in listed} == {
        ("prompt_length", "FINISHED", 2)
    }
    assert listed[0].best_tokens_per_sec < listed[1].best_tokens_per_sec
    assert Tools(uri).list_studies(limit=1) == listed[:1]
    assert Tools(uri).list_studies(experiment="prompt_length") == listed


@pytest.mark.slow(3)
def test_compare_answers_as_the_command(studies, uri):  # noqa: F811
    fast, slow = (f"study:{study.study_id}" for study in studies)
    compared = Tools(uri).compare([fast], [slow], ["tokens_per_sec"])
    assert {comparison.verdict for comparison in compared} == {"worse"}
    for comparison in compared:
        assert comparison.ratio_low < comparison.ratio < comparison.ratio_high < 1
        assert comparison.ratio == pytest.approx(1 / SLOWER, rel=0.05)
    rows = command("compare", "--baseline", fast, "--candidate", slow, "--metric", "tokens_per_sec", uri=uri)
    assert (
        {comparison.scenario for comparison in compared}
        == {row["scenario"] for row in rows}
        == {"prompt_4", "prompt_8"}
    )


@pytest.mark.slow(3)
def test_gate_answers_as_the_command(studies, uri):  # noqa: F811
    fast, slow = (f"study:{study.study_id}" for study in studies)
    rule = "tokens_per_sec < -10%"
    broken = Tools(uri).gate([fast], [slow], [rule])
    assert (broken.passed, broken.exit_code, broken.summary) == (False, 3, "gate failed: 2 broken")
    rows = command("gate", "--baseline", fast, "--candidate", slow, "--fail-if", rule, uri=uri)
    keys = ("scenario", "verdict", "baseline", "candidate", "why")
    assert [[getattr(check, key) for key in keys] for check in broken.checks] == [
        [row[key] for key in keys] for row in rows
    ]
    passed = Tools(uri).gate([slow], [fast], [rule])
    assert (passed.passed, passed.exit_code, {check.verdict for check in passed.checks}) == (True, 0, {"kept"})


@pytest.mark.slow(3)
def test_recommend_answers_as_the_command(studies, uri):  # noqa: F811
    printed = command("recommend", "--study", "latest", uri=uri)
    assert asdict(Tools(uri).recommend()) == {
        **printed,
        "ruled_out": [{"scenario": name, "why": why} for name, why in printed["ruled_out"]],
    }


@pytest.mark.slow(3)
def test_the_history_of_a_metric_has_its_intervals(studies, uri):  # noqa: F811
    points = Tools(uri).history("tokens_per_sec", scenario="prompt_4")
    assert [point.study_id for point in points] == [point.study_id for point in reversed(studies)]
    for point in points:
        assert point.low < point.value < point.high
        assert (point.n, point.unit, point.scenario) == (8, "tokens/s", "prompt_4")
        assert point.model_uri.startswith("models:/m-")
    assert points[0].value == pytest.approx(points[1].value / SLOWER, rel=0.05)
    once = Tools(uri).history("peak_memory_mib", limit=1)
    assert [(point.low, point.high, point.n) for point in once] in ([(None, None, None)], [])
    assert Tools(uri).history("tokens_per_sec", model="nothing like it") == []


@pytest.mark.parametrize("limit", [0, -1, MAX_ANSWERS + 1])
@pytest.mark.slow(3)
def test_the_number_of_answers_is_bounded(studies, uri, limit):  # noqa: F811
    for ask in (Tools(uri).list_studies, lambda limit: Tools(uri).history("tokens_per_sec", limit=limit)):
        with pytest.raises(UsageError, match=rf"limit {limit} is not possible: use 1 to {MAX_ANSWERS}"):
            ask(limit=limit)


def test_a_missing_library_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setattr(mcp, "not_installed", list)
    done = CliRunner().invoke(main, ["mcp"])
    assert done.exit_code == 2
    assert done.output == 'error: llmtrack mcp needs fastmcp: pip install "llmtrack[mcp]"\n'


def ask(uri: str, *calls: tuple[str, dict[str, Any]] | Callable[[], object], stderr: Path):  # noqa: F811
    """Start `llmtrack mcp`, and return its tools by name and the answers to some calls; functions are called in between.

    The process ends by itself when its stdin does.
    """
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    environment = {**os.environ, "PYTHONPATH": with_folders(ROOT)}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "llmtrack", "mcp", "--tracking-uri", uri], env=environment
    )

    async def talk():
        with stderr.open("w") as log:
            async with stdio_client(server, errlog=log) as streams, ClientSession(*streams) as session:
                initialized = await session.initialize()
                assert initialized.serverInfo.name == "llmtrack"
                tools = {tool.name: tool for tool in (await session.list_tools()).tools}
                answers = [call() if callable(call) else await session.call_tool(*call) for call in calls]
                return tools, answers

    # Playwright leaves a running loop in the main thread of a test process that it has served.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, talk()).result()


@pytest.mark.skipif(bool(mcp.not_installed(["fastmcp"])), reason="fastmcp is not installed: pip install llmtrack[mcp]")
@pytest.mark.slow(10)
def test_a_stdio_client_gets_the_functions_answers_or_one_line_and_nothing_is_written(studies, uri, tmp_path):  # noqa: F811
    fast, slow = (f"study:{study.study_id}" for study in studies)
    before, log = fingerprint(uri), tmp_path / "stderr.txt"
    database = sqlite_path(uri)
    hidden = database.rename(tmp_path / "hidden.db")

    def restore() -> None:
        assert not database.exists(), "asking creates no database"
        hidden.rename(database)

    offered, (*refused, _, newest, compared, gated, recommended, history) = ask(
        uri,
        ("delete_run", {"run_id": "1"}),
        ("alias", {"name": "production", "selector": "latest"}),
        ("list_studies", {}),
        restore,
        ("list_studies", {"limit": 1}),
        ("compare", {"baseline": [fast], "candidates": [slow], "metrics": ["tokens_per_sec"]}),
        ("gate", {"baseline": [fast], "candidate": [slow], "fail_if": ["tokens_per_sec < -10%"]}),
        ("recommend", {}),
        ("history", {"metric": "tokens_per_sec"}),
        stderr=log,
    )
    assert set(offered) == TOOLS
    for tool in offered.values():
        assert (tool.annotations.readOnlyHint, tool.annotations.destructiveHint) == (True, False)
        assert tool.outputSchema["type"] == "object"

    assert all(answer.isError for answer in refused)
    deleted, alias, listed = (answer.content[0].text for answer in refused)
    assert "delete_run" in deleted
    assert "alias" in alias
    assert listed.startswith(f"there is no tracking database {database}")

    tools = Tools(uri)
    for answer, expected in (
        (newest, tools.list_studies(limit=1)),
        (compared, tools.compare([fast], [slow], ["tokens_per_sec"])),
        (history, tools.history("tokens_per_sec")),
    ):
        assert answer.structuredContent == {"result": list(map(asdict, expected))}
    assert gated.structuredContent == asdict(tools.gate([fast], [slow], ["tokens_per_sec < -10%"]))
    assert recommended.structuredContent == asdict(tools.recommend())
    assert not any(answer.isError for answer in (newest, compared, gated, recommended, history))
    assert fingerprint(uri) == before
    assert "Traceback" not in log.read_text()
