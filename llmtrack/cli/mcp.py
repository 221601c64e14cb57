"""Serve tracked runs to agents by the Model Context Protocol: the commands as read-only tools with typed answers."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmtrack.errors import LlmtrackError, MissingDependencyError, UsageError, in_words
from llmtrack.host.packages import install_command, not_installed
from llmtrack.tracked.run import Run
from llmtrack.version import __version__

MAX_ANSWERS = 200
"""Maximum number of answers per call."""

# Standard output is shared by all threads.
_stdout_lock = threading.Lock()

INSTRUCTIONS = (
    "Tracked measurements of ways to run a causal language model: speed, memory and quality. All tools only read. SELECTOR names runs: "
    "latest, latest:EXPERIMENT, study:ID, a run id, alias:NAME, branch:NAME or tag:KEY=VALUE, each also with #SCENARIO."
)


@dataclass(frozen=True)
class Study:
    """One execution of an experiment."""

    study_id: str
    experiment: str
    question: str
    status: str
    started: str
    run_id: str
    scenarios_measured: int | None
    scenarios_failed: int | None
    best_tokens_per_sec: float | None


@dataclass(frozen=True)
class Compared:
    """A metric of a candidate against a baseline; the ratio is candidate over baseline, with its 95 % interval."""

    scenario: str
    baseline_scenario: str
    metric: str
    unit: str
    better: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: str
    words: str
    doubts: list[str]
    run_id: str
    baseline_run_id: str


@dataclass(frozen=True)
class RuledOut:
    """A scenario that is not recommended, and why."""

    scenario: str
    why: str


@dataclass(frozen=True)
class Recommended:
    """The recommended settings; no `scenario` if none qualifies or the result is inconclusive (`measure` settles it)."""

    scenario: str | None
    run_id: str | None
    sentence: str
    ruled_out: list[RuledOut]
    notes: list[str]
    measure: str
    command: str
    python: str
    settings: list[str]


@dataclass(frozen=True)
class Checked:
    """A rule on one scenario: broken, kept, missing or inconclusive."""

    rule: str
    scenario: str
    verdict: str
    baseline: str
    candidate: str
    change: str
    why: str


@dataclass(frozen=True)
class Gated:
    """The result of a gate; exit code 3: a rule is broken, 2: one cannot be checked, 0: passed."""

    passed: bool
    exit_code: int
    summary: str
    checks: list[Checked]
    notes: list[str]


@dataclass(frozen=True)
class Point:
    """A metric of one run, with the 95 % interval of the median of its `n` repeats where it was repeated."""

    run_id: str
    study_id: str
    experiment: str
    scenario: str
    started: str
    value: float
    unit: str
    low: float | None
    high: float | None
    n: int | None
    environment_id: str
    model_uri: str | None


class Tools:
    """The tools, on one store.

    Args:
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self._uri = tracking_uri

    def list_studies(self, experiment: str | None = None, limit: int = 20) -> list[Study]:
        """List studies (executions of experiments), newest first: what each asks, how it stands and its best speed."""
        from llmtrack.tracking.read.query import tracked_runs

        studies = tracked_runs(experiment, kind="study", tracking_uri=self._uri)
        return [_study(run) for run in studies[: _check_limit(limit)]]

    def compare(
        self,
        baseline: list[str],
        candidates: list[str],
        metrics: list[str] | None = None,
        experiment: str | None = None,
        across_environments: bool = False,
    ) -> list[Compared]:
        """Compare candidates with a baseline (each a list of SELECTOR), metric by metric, telling differences from noise."""
        from llmtrack.decide.compare import compare

        table = compare(
            baseline,
            candidates,
            metrics,
            experiment=experiment,
            across_environments=across_environments,
            tracking_uri=self._uri,
        )
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        names = [name for name in Compared.__dataclass_fields__ if name != "doubts"]
        return [
            Compared(doubts=(row["doubts"] or "").splitlines(), **{name: row[name] for name in names}) for row in rows
        ]

    def recommend(
        self,
        study: str = "latest",
        experiment: str | None = None,
        objective: str = "tokens_per_sec",
        max_perplexity_increase: str | None = None,
        max_memory: str | None = None,
        baseline: str | None = None,
    ) -> Recommended:
        """Recommend how to run the model by a study (SELECTOR), within limits such as "1%" and "2GiB", and how to do so."""
        from llmtrack.decide.recommend import Limits, parse_percent, parse_size, recommend
        from llmtrack.decide.verdicts import with_samples
        from llmtrack.run.reproduce import how_to_run
        from llmtrack.tracking.read.query import tracked_runs

        limits = Limits(
            parse_percent(max_perplexity_increase) if max_perplexity_increase else None,
            parse_size(max_memory) if max_memory else None,
        )
        runs = with_samples(tracked_runs(experiment, study, tracking_uri=self._uri), self._uri)
        recommendation = recommend(runs, limits, objective, baseline)
        commands, settings = how_to_run(runs, recommendation.run_id)
        return Recommended(
            recommendation.scenario,
            recommendation.run_id,
            recommendation.sentence,
            [RuledOut(name, why) for name, why in recommendation.ruled_out],
            list(recommendation.notes),
            recommendation.measure,
            commands[0] if commands else "",
            "\n".join(commands[1:]),
            settings,
        )

    def gate(
        self,
        baseline: list[str],
        candidate: list[str],
        fail_if: list[str],
        experiment: str | None = None,
        across_environments: bool = False,
        strict: bool = False,
    ) -> Gated:
        """Check rules such as "tokens_per_sec < -5%" on a candidate against a baseline (each a list of SELECTOR)."""
        from llmtrack.decide.gate import gate
        from llmtrack.report.gate import gate_summary, gate_table

        result = gate(
            baseline,
            candidate,
            fail_if,
            experiment=experiment,
            across_environments=across_environments,
            strict=strict,
            tracking_uri=self._uri,
        )
        checks = [Checked(*map(str, row)) for row in gate_table(result).rows]
        return Gated(result.exit_code == 0, result.exit_code, gate_summary(result), checks, list(result.notes))

    def history(
        self,
        metric: str,
        experiment: str | None = None,
        scenario: str | None = None,
        model: str | None = None,
        limit: int = 50,
    ) -> list[Point]:
        """Return a metric over time, newest first: its value in each finished run, with its interval."""
        from llmtrack.decide.compare import require_metric
        from llmtrack.tracking.read.query import tracked_runs

        runs = tracked_runs(experiment, model=model, status="FINISHED", tracking_uri=self._uri)
        require_metric(metric, sorted({name for run in runs for name in run.metrics}))
        matches = runs.where(lambda run: run.number(metric) is not None and scenario in (None, run.scenario))
        return [_point(run, metric) for run in matches[: _check_limit(limit)]]


def serve(tracking_uri: str | None = None) -> None:
    """Serve the tools over stdin and stdout until stdin ends.

    Raises:
        MissingDependencyError: the library of the protocol is not installed.
    """
    if not_installed(["fastmcp"]):
        raise MissingDependencyError(f"llmtrack mcp needs fastmcp: {install_command('mcp')}")
    from fastmcp import FastMCP
    from fastmcp.tools import Tool
    from mcp.types import ToolAnnotations

    server = FastMCP("llmtrack", instructions=INSTRUCTIONS, version=__version__)
    tools = Tools(tracking_uri)
    read_only = ToolAnnotations(readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=False)
    for tool in (tools.list_studies, tools.compare, tools.recommend, tools.gate, tools.history):
        server.add_tool(Tool.from_function(_as_answer(tool), annotations=read_only))
    # The library closes the stdout that it writes to.
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    with contextlib.redirect_stdout(protocol):
        server.run("stdio", show_banner=False)


def _as_answer(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tool: its errors are one line to the agent, and it leaves stdout to the protocol."""
    from fastmcp.exceptions import ToolError

    @functools.wraps(tool)
    def answer(*args: Any, **options: Any) -> Any:
        with _stdout_lock, contextlib.redirect_stdout(sys.stderr):
            try:
                return tool(*args, **options)
            except LlmtrackError as error:
                raise ToolError(in_words(error)) from error

    return answer


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_ANSWERS:
        raise UsageError(f"limit {limit} is not possible: use 1 to {MAX_ANSWERS}")
    return limit


def _study(run: Run) -> Study:
    measured, failed = run.number("scenarios_measured"), run.number("scenarios_failed")
    return Study(
        run.study_id,
        run.experiment,
        run.question,
        run.status,
        _start_time(run),
        run.run_id,
        None if measured is None else int(measured),
        None if failed is None else int(failed),
        run.number("best_tokens_per_sec"),
    )


def _point(run: Run, metric: str) -> Point:
    from llmtrack import metrics as schema

    spread = run.spread(metric)
    low, high, n = (spread.low, spread.high, spread.n) if spread else (None, None, None)
    return Point(
        run.run_id,
        run.study_id,
        run.experiment,
        run.scenario,
        _start_time(run),
        run.metrics[metric],
        schema.metric(metric).unit,
        low,
        high,
        n,
        run.environment_id,
        run.model_uri or None,
    )


def _start_time(run: Run) -> str:
    return run.start_time.isoformat(timespec="seconds") if run.start_time else ""
