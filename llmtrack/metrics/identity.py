"""Tags: identity and provenance of a run."""

from __future__ import annotations

from llmtrack.metrics.entry import Tag
from llmtrack.metrics.names import ASKED_TAG, DETAILS_TAG, ENVIRONMENT_TAG

# One row each, regardless of line length.
# fmt: off
TAGS: tuple[Tag, ...] = (
    Tag("llmtrack.kind", "`study` (one execution of an experiment) or `scenario` (one measured cell); `set_aside`: a cell's run that was disturbed and remeasured, which nothing else shows"),
    Tag("llmtrack.experiment", "name of the llmtrack experiment"),
    Tag("llmtrack.study_id", "ties the scenario runs of a study together"),
    Tag("llmtrack.suite_id", "ties the studies of one suite together"),
    Tag("llmtrack.baseline", "`true` for the scenario that the others of its study are compared with", packed=True),
    Tag("llmtrack.position", "place of the scenario in its study, from 0: tables keep this order", packed=True),
    Tag("llmtrack.outcome", "`finished`, `failed`, `killed` or `same_as`; `mlflow run` does not overwrite it"),
    Tag("llmtrack.process", "machine, its start, process id and start of the process that writes the run: by it a run that was left RUNNING is closed", while_running=True),
    Tag("llmtrack.work", "digest of all that a study measures and where: `resume=true` refuses what another process of the machine is at", while_running=True),
    Tag("llmtrack.failure", "kind of a failure, one word"),
    Tag("llmtrack.reason", "why a scenario failed, or was not measured twice, in one line"),
    Tag("llmtrack.spread", "JSON: of each sampled metric how its repeats lie; read back as `spread/METRIC.STAT`", packed=True),
    Tag("llmtrack.warnings", "findings about the quality of the measurement, one a line; of a study, what of its report could not be made"),
    Tag("llmtrack.same_as", "name of the scenario whose measurement also holds for this one", packed=True),
    Tag("llmtrack.scenario_id", "digest of what was asked", packed=True),
    Tag("llmtrack.workload_id", "digest of the prompts and lengths, or of the corpus and convention", packed=True),
    Tag("llmtrack.environment_id", "digest of what affects speed: hardware, versions, threads"),
    Tag(ENVIRONMENT_TAG, "JSON: the facts of the environment and the model's digests, also the artifact `environment.json`; read back as `env.KEY`"),
    Tag(DETAILS_TAG, "JSON: the values below that no search needs; read back as columns of `llmtrack.runs`"),
    Tag("llmtrack.record_id", "identity of the record that was pushed; no two runs have the same"),
    Tag("llmtrack.model_uri", "`models:/ID` of the logged model that stands for the way to run that was measured; its metrics hold those of all runs of that way", packed=True),
    Tag("llmtrack.omitted", "what was shortened or left out to fit MLflow's limits"),
    Tag("llmtrack.taken_over", "runs of earlier studies that are this study's by `resume`, or by `same=reuse` of a suite: id to scenario and baseline"),
    Tag(ASKED_TAG, "parameters of the experiment that are not as by default, as JSON: by these it is measured again", packed=True),
    Tag("llmtrack.question", "the question that the experiment asks", packed=True),
)
# fmt: on
