"""Build records, the data of one run each, from outcomes; they are kept in the spool and pushed to MLflow."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmtrack import metrics as schema
from llmtrack.spec.outcome import REPLACED, Failure, Generation, Measurement, Outcome, StepValues
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.spec.scores import Item
from llmtrack.spec.serialization import digest, serializable, to_json
from llmtrack.spec.task import GenerateTask, not_asked
from llmtrack.tracked.run import FAILED, FINISHED, KILLED, RUNNING
from llmtrack.tracking import packed
from llmtrack.tracking.write.datasets import DataSet, data_sets_of

DEFAULT_TRACES = 16
"""Generations of a run that are tracked by default; `MOST_GENERATIONS` are measured at most."""

SET_ASIDE = "set_aside"
"""Kind of a disturbed and remeasured run: tracked, but not returned as a scenario run."""

TABLE = "eval_results_table.json"
GENERATIONS = "generations_table.json"
TABLES_TAG = "mlflow.loggedArtifacts"
"""Tag by which MLflow finds the tables of a run."""

# Prompts are in the workload's digest, printing does not affect measurements, and the actual number of workers is
# recorded by the measurement.
_NOT_CONDITIONS = ("prompts", "verbose", "workers")
_CLOCK = re.compile(r"-(\d\d)(\d\d)\d\d-")
_LONGEST_MODEL = 40


@dataclass(frozen=True)
class StudyContext:
    """Data common to all runs of a study.

    Attributes:
        study_id: such as `prompt_length-20261128-014301-3f2a`.
        scenarios: names of its scenarios, in order.
    """

    study_id: str
    experiment: str
    suite_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    scenarios: tuple[str, ...] = ()


@serializable("steps", "inputs", "generations")
@dataclass(frozen=True)
class RunRecord:
    """All data of one run.

    Attributes:
        record_id: identity; pushing it twice creates one run.
        status: `FINISHED`, `FAILED`, `KILLED`, or `RUNNING` for a study in progress.
        start_ms: since the epoch, as `end_ms`.
        series: one value per step each.
        steps: values by step with times, for series with different steps.
        tags: identity and provenance.
        texts: artifact path to text.
        inputs: data sets that it read.
        generations: outputs to keep as traces.
    """

    record_id: str
    run_name: str
    status: str
    start_ms: int
    end_ms: int
    params: Mapping[str, Scalar] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    steps: tuple[StepValues, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[DataSet, ...] = ()
    generations: tuple[Generation, ...] = ()


def study_record(study: StudyContext, question: str, settings: Mapping[str, Scalar], start_ms: int) -> RunRecord:
    """Build the record of a starting study."""
    return RunRecord(
        record_id=study.study_id,
        run_name=study_name(study, [str(settings.get("model", ""))]),
        status=RUNNING,
        start_ms=start_ms,
        end_ms=0,
        params={schema.SETTING_PREFIX + key: _plain(value) for key, value in settings.items()},
        tags={**study.tags, **_study_tags(study), "llmtrack.kind": "study", "llmtrack.question": question},
    )


def study_name(study: StudyContext, models: Iterable[str]) -> str:
    """Name the run of a study: `precision 11:02, study of smollm2`, with the time in UTC.

    MLflow's list shows some 20 characters, so the distinctive part comes first.
    """
    names = list(dict.fromkeys(filter(None, map(short_name, models))))
    clock = _CLOCK.search(study.study_id)
    title = f"{study.experiment} {clock[1]}:{clock[2]}" if clock else study.experiment
    subject = names[0] if len(names) == 1 else f"{len(names)} models" if names else ""
    if study.experiment in ("suite", "compare"):
        return f"{title}, {subject}" if subject else title
    return f"{title}, study of {subject}" if subject else f"{title}, study"


def scenario_record(outcome: Outcome, study: StudyContext, remark: str = "", traces: int = DEFAULT_TRACES) -> RunRecord:
    """Build the record of a measured or failed scenario.

    Args:
        remark: appended to its listed name.
        traces: maximum generations to track.
    """
    record = _failure_record(outcome, study) if isinstance(outcome, Failure) else _measurement_record(outcome, study)
    # Not part of the identity, which has the digests already.
    record = dataclasses.replace(record, inputs=data_sets_of(outcome.scenario, record.params))
    if isinstance(outcome, Measurement):
        generations = outcome.generations[:traces]
        tables, tags = tables_of(outcome.items, generations)
        texts, tags = {**record.texts, **tables}, {**record.tags, **tags}
        record = dataclasses.replace(record, generations=generations, texts=texts, tags=tags)
    return _in_list(record, study, remark)


def begun_record(
    scenario: Scenario,
    run_key: str,
    facts: Mapping[str, Scalar],
    tags: Mapping[str, str],
    started_at: float,
    study: StudyContext,
) -> RunRecord:
    """Build the record of a scenario whose run is written to while it goes on."""
    record = _record(scenario, facts, study, RUNNING, (started_at, 0.0), {}, tags)
    return _in_list(dataclasses.replace(record, record_id=run_key), study)


def same_as_record(
    scenario: Scenario,
    facts: Mapping[str, Scalar],
    same_as: str,
    note: str,
    study: StudyContext,
    now_s: float,
) -> RunRecord:
    """Build the record of a scenario covered by another one's measurement.

    Args:
        facts: what would have been used, such as the dtype label.
    """
    tags = {"llmtrack.outcome": "same_as", "llmtrack.same_as": same_as, "llmtrack.reason": note}
    record = _identified(_record(scenario, facts, study, FINISHED, (now_s, now_s), tags))
    return _in_list(record, study, f" = {same_as}")


def tables_of(items: Sequence[Item], generations: Sequence[Generation] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """Lay out items and generations as MLflow's evaluation tables: artifacts by path, and the tag that lists them.

    MLflow groups by the first column and compares the second, unless the user chooses others.
    """
    names = list(dict.fromkeys(name for item in items for name in item.values))
    candidates = {
        TABLE: _table_json(
            ["document", *names], ([item.name, *(_finite(item.values.get(name)) for name in names)] for item in items)
        ),
        GENERATIONS: _table_json(
            ["prompt", "output", "seconds", "first_token_s", "new_tokens"],
            ([gen.prompt, gen.text, gen.seconds, gen.first_token_s, gen.new_tokens] for gen in generations),
        ),
    }
    tables = {path: text for path, text in candidates.items() if text}
    listed = [{"path": path, "type": "table"} for path in tables]
    return tables, {TABLES_TAG: json.dumps(listed)} if listed else {}


def params_of(scenario: Scenario) -> dict[str, Scalar]:
    """Return the params implied by the request, without settings that are None."""
    variant, task = scenario.variant, scenario.task
    params: dict[str, Any] = {
        "scenario": scenario.name,
        "task": type(task).__name__.removesuffix("Task").lower(),
        "model": variant.model,
        "revision": variant.revision,
        "backend": variant.backend,
        "device_requested": variant.device,
        "dtype_requested": variant.dtype,
        "quantization": variant.quantization,
    }
    # New fields of a task are tracked automatically.
    omitted = (*_NOT_CONDITIONS, *not_asked(task))
    settings = (f.name for f in dataclasses.fields(task) if f.name not in omitted)
    params.update({name: getattr(task, name) for name in settings})
    if isinstance(task, GenerateTask):
        params.update(
            batch_size=task.batch_size or len(task.prompts),
            decoding="greedy",
            **to_json(scenario.repeat),
        )
    if scenario.quality is not None:
        convention = to_json(scenario.quality.perplexity)
        # For a timed task, batch size and padding refer to the timing; they do not affect perplexity.
        params.update({k: v for k, v in convention.items() if k not in (*_NOT_CONDITIONS, *params)})
    return {key: value for key, value in params.items() if value is not None}


def _measurement_record(measurement: Measurement, study: StudyContext) -> RunRecord:
    metrics = {name: float(value) for name, value in measurement.metrics.items()}
    for name, summary in measurement.summaries.items():
        values = {stat: getattr(summary, stat) for stat in schema.SPREAD_STATS}
        metrics.update({schema.spread_key(name, stat): v for stat, v in values.items() if v is not None})
    tags = {"llmtrack.outcome": "finished", "llmtrack.workload_id": measurement.workload_id}
    texts = dict(measurement.texts)
    if measurement.samples or measurement.summaries:
        texts["samples.json"] = _samples_json(measurement)
    if measurement.sample_text is not None:
        texts["sample.txt"] = measurement.sample_text
    if any(REPLACED in line for line in measurement.warnings):
        # Tracked, but excluded from views, tables and comparisons.
        tags["llmtrack.kind"] = SET_ASIDE
    if measurement.warnings:
        tags["llmtrack.warnings"] = "\n".join(measurement.warnings)
        texts["warnings.txt"] = "\n".join(measurement.warnings) + "\n"
    record = _record(
        measurement.scenario,
        measurement.facts,
        study,
        FINISHED,
        (measurement.started_at, measurement.ended_at),
        tags,
        measurement.tags,
    )
    series = {schema.series_key(name): tuple(map(float, values)) for name, values in measurement.series.items()}
    record = dataclasses.replace(record, metrics=metrics, series=series, steps=measurement.steps, texts=texts)
    return _identified(record, measurement.run_key)


def _failure_record(failure: Failure, study: StudyContext) -> RunRecord:
    reason = " ".join(failure.reason.split())
    killed = failure.kind == "interrupted"
    tags = {
        "llmtrack.outcome": "killed" if killed else "failed",
        "llmtrack.failure": failure.kind,
        "llmtrack.reason": reason,
    }
    times = (failure.started_at, failure.ended_at)
    status = KILLED if killed else FAILED
    record = _record(failure.scenario, failure.facts, study, status, times, tags, failure.tags)
    text = f"{reason}\n\n{failure.details}".rstrip() + "\n"
    # An interrupted run may be resumed, and artifacts cannot be removed.
    texts = dict(failure.texts) if killed else {**failure.texts, "failure.txt": text}
    return _identified(dataclasses.replace(record, steps=failure.steps, texts=texts), failure.run_key)


def _record(
    scenario: Scenario,
    facts: Mapping[str, Scalar],
    study: StudyContext,
    status: str,
    times_s: tuple[float, float],
    tags: Mapping[str, str],
    provenance: Mapping[str, str] | None = None,
) -> RunRecord:
    start_ms, end_ms = (round(1000 * second) for second in times_s)
    position = study.scenarios.index(scenario.name) if scenario.name in study.scenarios else None
    return RunRecord(
        record_id="",
        run_name=scenario.name,
        status=status,
        start_ms=start_ms,
        end_ms=end_ms,
        params={**params_of(scenario), **{key: _plain(value) for key, value in facts.items()}},
        tags={
            **study.tags,
            **{_tag_key(key): value for key, value in (provenance or {}).items()},
            **_study_tags(study),
            "llmtrack.kind": "scenario",
            "llmtrack.scenario": scenario.name,
            "llmtrack.baseline": "true" if scenario.baseline else "false",
            "llmtrack.scenario_id": scenario.scenario_id,
            **({} if position is None else {"llmtrack.position": str(position)}),
            **tags,
        },
    )


def _study_tags(study: StudyContext) -> dict[str, str]:
    tags = {"llmtrack.experiment": study.experiment, "llmtrack.study_id": study.study_id}
    return {**tags, "llmtrack.suite_id": study.suite_id} if study.suite_id else tags


def _identified(record: RunRecord, run_key: str = "") -> RunRecord:
    """Give a record its identity: its run key, or a digest of its content."""
    if run_key:
        return dataclasses.replace(record, record_id=run_key)
    # Escape to ASCII, so that lone surrogates do not fail.
    return dataclasses.replace(record, record_id=digest(json.dumps(to_json(record), sort_keys=True)))


def _in_list(record: RunRecord, study: StudyContext, remark: str = "") -> RunRecord:
    """Set a record's listed name, and move digests and spreads to tags.

    The identity depends on what was measured, not on the listing, so this comes afterwards.
    """
    name = record.run_name
    if name.partition("_")[0] != study.experiment:  # otherwise the name already says so
        name = f"{study.experiment}/{name}"
    digests = {name: str(value) for name, value in record.params.items() if schema.is_digest(name)}
    metrics, spread = packed.split_spread(record.metrics)
    return dataclasses.replace(
        record,
        run_name=name + remark,
        params={name: value for name, value in record.params.items() if name not in digests},
        metrics=metrics,
        tags={
            **record.tags,
            **{schema.DIGEST_PREFIX + name: value for name, value in digests.items()},
            **spread,
        },
    )


def short_name(model: str) -> str:
    """Shorten a model to its bare name: `packaged:smollm2,synthetic:tiny` to `smollm2`."""
    first = model.split(",")[0].strip().rstrip("/\\")
    return re.split(r"[/\\:]", first)[-1][:_LONGEST_MODEL]


def _plain(value: Any) -> Scalar:
    """Convert array-library scalars to Python's, and anything else to text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _tag_key(key: str) -> str:
    return key if key.startswith(("llmtrack.", "mlflow.")) else schema.ENV_TAG_PREFIX + key


def _samples_json(measurement: Measurement) -> str:
    data = {
        "samples": {key: list(map(float, values)) for key, values in measurement.samples.items()},
        **({"rounds": list(measurement.rounds)} if measurement.rounds else {}),
        "summaries": to_json(measurement.summaries),
    }
    return json.dumps(data, indent=1) + "\n"


def _table_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    data = list(rows)
    return json.dumps({"columns": columns, "data": data}, ensure_ascii=False) if data else ""


def _finite(value: float | None) -> float | str | None:
    """Replace a number that JSON lacks by its name."""
    return value if value is None or math.isfinite(value) else str(value)
