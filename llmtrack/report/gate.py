"""Format the result of a gate as a table, and as JUnit XML for CI servers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from llmtrack.decide.gate import GATE_FAILED, NOT_CHECKED, GateResult, PairCheck
from llmtrack.decide.selection import Pair, runs_of_pairs
from llmtrack.host.formatting import significant
from llmtrack.report.tables.differences import model_and_device_conditions, study_conditions
from llmtrack.report.tables.table import DASH, Table

_OUTCOMES = {0: "passed", NOT_CHECKED: "not passed, it could not check everything", GATE_FAILED: "failed"}

# Characters forbidden in XML 1.0 even if escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_table(result: GateResult) -> Table:
    """Lay out a row per rule and scenario."""
    pairs = [check.pair for check in result.checks]
    return Table(
        conditions=(*model_and_device_conditions(runs_of_pairs(pairs)), *study_conditions(pairs)),
        titles=("fail if", "scenario", "verdict", "baseline", "candidate", "change, 95 % interval", "why"),
        numeric=(False, False, False, True, True, False, False),
        rows=tuple(map(_row, result.checks)),
        run_ids=tuple(pair.candidate.run_id for pair in pairs),
        notes=result.notes,
        keys=("rule", "scenario", "verdict", "baseline", "candidate", "change", "why"),
    )


def gate_summary(result: GateResult) -> str:
    """Summarize the gate's outcome in one line."""
    counts = {outcome: len(result.of(outcome)) for outcome in ("broken", "kept", "inconclusive", "missing")}
    notes = [", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)]
    if not counts["broken"] and not counts["kept"] and counts["inconclusive"]:
        notes.append("measure more repeats (--strict treats this as a failure)")
    if result.missing:
        first, more = result.missing[0], len(result.missing) - 1
        example = f"{first.pair.candidate.name}: {first.check.why}" + (f" and {more} more" if more else "")
        notes.append(f"{example}: measure it, or accept it by --allow-missing")
    notes += result.unchecked
    return f"gate {_OUTCOMES[result.exit_code]}: {'; '.join(filter(None, notes))}"


def to_junit(result: GateResult) -> str:
    """Render JUnit XML: a broken rule is a failure, an inconclusive one is skipped (strict: a failure).

    Unchecked rules are errors: a missing value that is not accepted, or a rule that checks nothing.
    """
    reported = (*result.failing, *result.missing)
    skipped = [
        pair_check for pair_check in result.checks if pair_check.check.outcome != "kept" and pair_check not in reported
    ]
    suite = ElementTree.Element(
        "testsuite",
        name="llmtrack gate",
        tests=str(len(result.checks) + len(result.unchecked)),
        failures=str(len(result.failing)),
        errors=str(len(result.missing) + len(result.unchecked)),
        skipped=str(len(skipped)),
    )
    for pair_check in result.checks:
        check, run = pair_check.check, pair_check.pair.candidate
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml(f"{run.text('experiment')}.{run.name}"),
            name=_xml(f"not {check.rule}"),
        )
        message = _xml(f"{check.outcome}: {', '.join(filter(None, (check.change, check.why)))}")
        if pair_check in result.failing:
            ElementTree.SubElement(case, "failure", message=message).text = _runs(pair_check.pair)
        elif pair_check in result.missing:
            ElementTree.SubElement(case, "error", message=message).text = _runs(pair_check.pair)
        elif pair_check in skipped:
            ElementTree.SubElement(case, "skipped", message=message)
        ElementTree.SubElement(case, "system-out").text = f"{message}\n{_runs(pair_check.pair)}"
    for line in result.unchecked:
        case = ElementTree.SubElement(suite, "testcase", classname="llmtrack", name=_xml(line))
        ElementTree.SubElement(case, "error", message=_xml(line))
    if result.notes:
        ElementTree.SubElement(suite, "system-out").text = _xml("\n".join(result.notes))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _row(pair_check: PairCheck) -> tuple[str, ...]:
    pair, check = pair_check.pair, pair_check.check
    values = (run.number(check.rule.metric) for run in (pair.baseline, pair.candidate))
    shown = (DASH if value is None else significant(value) for value in values)
    return str(check.rule), pair.candidate.name, check.outcome, *shown, check.change or DASH, check.why


def _runs(pair: Pair) -> str:
    return f"baseline run {pair.baseline.run_id}, candidate run {pair.candidate.run_id}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
