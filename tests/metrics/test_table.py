from pathlib import Path

from llmtrack import metrics as schema
from llmtrack.metrics.page import page
from llmtrack.tracked.frames import ID_COLUMNS

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_docs_are_up_to_date():
    assert DOCS.read_text(encoding="utf-8") == page(), "run: python -m llmtrack.metrics > docs/metrics.md"


def test_names_of_metrics_params_and_id_columns_are_disjoint():
    metrics, params = [m.name for m in schema.METRICS], [p.name for p in schema.PARAMS]
    everything = metrics + params + list(ID_COLUMNS)
    assert sorted(everything) == sorted(set(everything))
    assert len({tag.name for tag in schema.TAGS}) == len(schema.TAGS)


def test_every_name_is_accepted_by_mlflow_unchanged():
    from llmtrack.tracking.limits import fit_key

    spreads = [schema.spread_key(m.name, stat) for m in schema.METRICS for stat in schema.SPREAD_STATS]
    names = [*schema.METRIC_BY_NAME, *schema.PARAM_BY_NAME, *(tag.name for tag in schema.TAGS), *spreads]
    assert [fit_key(name) for name in names] == names


def test_every_metric_has_unit_direction_meaning_and_formula():
    for metric in schema.METRICS:
        assert metric.better in ("lower", "higher", "-")
        assert all((metric.unit, metric.meaning, metric.formula))
