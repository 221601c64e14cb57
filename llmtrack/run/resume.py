"""Find scenarios that are measured already: asked alike, of the same work, on the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmtrack.quality.corpora import load_corpus
from llmtrack.scenario import GenerateTask, Scenario, workload_id
from llmtrack.tracking.query import runs

if TYPE_CHECKING:
    import pandas as pd

IDS = ["scenario_id", "workload_id", "environment_id"]


def finished_already(
    scenarios: Sequence[Scenario], environment_id: str, tracking_uri: str | None = None
) -> pd.DataFrame:
    """Return the newest finished run of each scenario that has one, under the scenario's present name.

    Args:
        scenarios: what is to be measured.
        environment_id: id of this machine and installation.
        tracking_uri: the store.
    """
    found = runs(
        status="FINISHED",
        search=f"tags.`llmtrack.environment_id` = '{environment_id}' and tags.`llmtrack.outcome` = 'finished'",
        tracking_uri=tracking_uri,
    )
    # Newest first, so that the first of equal ones is kept.
    newest = found.drop_duplicates(IDS).set_index(IDS, drop=False)
    asked = {
        (scenario.scenario_id, _workload_id(scenario), environment_id): scenario for scenario in scenarios
    }
    kept = newest[newest.index.isin(list(asked))]
    scored = (_scored_text(asked[ids]) for ids in kept.index)
    kept = kept[
        [not text or text == then for text, then in zip(scored, kept["corpus_digest"], strict=True)]
    ].copy()
    kept["scenario"] = [asked[ids].name for ids in kept.index]
    kept["baseline"] = [asked[ids].baseline for ids in kept.index]
    return kept.reset_index(drop=True)


def _workload_id(scenario: Scenario) -> str:
    task = scenario.task
    return workload_id(task, "" if isinstance(task, GenerateTask) else load_corpus(task.corpus).digest)


def _scored_text(scenario: Scenario) -> str:
    """Return the digest of the text that is scored beside a timed task; empty if none is."""
    return "" if scenario.quality is None else load_corpus(scenario.quality.perplexity.corpus).digest
