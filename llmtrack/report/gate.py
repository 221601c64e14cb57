"""Format the result of a gate as a table, and as JUnit XML for CI servers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from llmtrack.decide.gate import GATE_FAILED, NOT_CHECKED, GateResult, PairCheck
from llmtrack.decide.selection import runs_of_pairs
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
    skipped = [each for each in result.checks if each.check.outcome != "kept" and each not in reported]
    suite = ElementTree.Element(
        "testsuite",
        name="llmtrack gate",
        tests=str(len(result.checks) + len(result.unchecked)),
        failures=str(len(result.failing)),
        errors=str(len(result.missing) + len(result.unchecked)),
        skipped=str(len(skipped)),
    )
    for each in result.checks:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml(f"{each.pair.candidate.text('experiment')}.{each.pair.candidate.name}"),
            name=_xml(f"not {each.check.rule}"),
        )
        message = _xml(f"{each.check.outcome}: {', '.join(filter(None, (each.check.change, each.check.why)))}")
        if each in result.failing:
            ElementTree.SubElement(case, "failure", message=message).text = _runs(each)
        elif each in result.missing:
            ElementTree.SubElement(case, "error", message=message).text = _runs(each)
        elif each in skipped:
            ElementTree.SubElement(case, "skipped", message=message)
        ElementTree.SubElement(case, "system-out").text = f"{message}\n{_runs(each)}"
    for line in result.unchecked:
        case = ElementTree.SubElement(suite, "testcase", classname="llmtrack", name=_xml(line))
        ElementTree.SubElement(case, "error", message=_xml(line))
    if result.notes:
        ElementTree.SubElement(suite, "system-out").text = _xml("\n".join(result.notes))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _row(each: PairCheck) -> tuple[str, ...]:
    values = (run.number(each.check.rule.metric) for run in (each.pair.baseline, each.pair.candidate))
    shown = (DASH if value is None else significant(value) for value in values)
    check = each.check
    scenario = each.pair.candidate.name
    return str(check.rule), scenario, check.outcome, *shown, check.change or DASH, check.why


def _runs(each: PairCheck) -> str:
    return f"baseline run {each.pair.baseline.run_id}, candidate run {each.pair.candidate.run_id}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
