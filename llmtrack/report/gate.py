"""Lay out what a gate found: as a table for people, as JUnit XML for build servers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from llmtrack.decide.comparing import value_of
from llmtrack.decide.gate import GateResult, PairCheck
from llmtrack.report.table import DASH, Table
from llmtrack.tracking import ask

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_table(result: GateResult) -> Table:
    """Return a row per rule and scenario."""
    return Table(
        conditions=(),
        titles=("fail if", "scenario", "verdict", "baseline", "candidate", "change, 95 % interval", "why"),
        numeric=(False, False, False, True, True, False, False),
        rows=tuple(_row(each) for each in result.checks),
        run_ids=tuple(str(each.pair.candidate["run_id"]) for each in result.checks),
        notes=result.notes,
    )


def gate_summary(result: GateResult) -> str:
    """Return the gate's outcome in one line."""
    counts = {
        outcome: sum(each.check.outcome == outcome for each in result.checks)
        for outcome in ("broken", "kept", "cannot tell")
    }
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return f"gate {'failed' if result.failing else 'passed'}: {found}"


def to_junit(result: GateResult) -> str:
    """Return JUnit XML: a broken rule is a failure, one that cannot be told is skipped (strict: a failure)."""
    skipped = [each for each in result.checks if each.check.outcome == "cannot tell" and not result.strict]
    suite = ElementTree.Element(
        "testsuite",
        name="llmtrack gate",
        tests=str(len(result.checks)),
        failures=str(len(result.failing)),
        errors="0",
        skipped=str(len(skipped)),
    )
    for each in result.checks:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml(f"{ask.text(each.pair.candidate, 'experiment')}.{ask.name(each.pair.candidate)}"),
            name=f"not {each.check.rule}",
        )
        told = _xml(f"{each.check.outcome}: {', '.join(filter(None, (each.check.change, each.check.why)))}")
        if each in result.failing:
            ElementTree.SubElement(case, "failure", message=told).text = _runs(each)
        elif each in skipped:
            ElementTree.SubElement(case, "skipped", message=told)
        ElementTree.SubElement(case, "system-out").text = f"{told}\n{_runs(each)}"
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _row(each: PairCheck) -> tuple[str, ...]:
    values = (value_of(run, each.check.rule.metric) for run in (each.pair.baseline, each.pair.candidate))
    shown = (DASH if value is None else f"{value:,.4g}" for value in values)
    check = each.check
    scenario = ask.name(each.pair.candidate)
    return str(check.rule), scenario, check.outcome, *shown, check.change or DASH, check.why


def _runs(each: PairCheck) -> str:
    return f"baseline run {each.pair.baseline['run_id']}, candidate run {each.pair.candidate['run_id']}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
