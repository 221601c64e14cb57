"""Filters of runs are validated."""

from __future__ import annotations

import datetime

import pandas as pd
import pytest

from llmtrack.errors import UsageError
from llmtrack.tracking.read.filters import RunFilter
from tests.spec.test_parameter import NOT_TEXTS, type_name


@pytest.mark.parametrize("name", ["experiment", "study_id", "model", "kind", "search", "status"])
@pytest.mark.parametrize("value", NOT_TEXTS, ids=type_name)
def test_an_argument_that_is_not_a_text_is_refused(name, value):
    with pytest.raises(UsageError):
        RunFilter(**{name: value})


@pytest.mark.parametrize("moment", [3, float("nan"), pd.NaT, "yesterday", datetime.time()], ids=str)
def test_an_invalid_time_is_refused(moment):
    with pytest.raises(UsageError, match="is not a time"):
        RunFilter(since=moment).filters()


@pytest.mark.parametrize("tags", [["a"], "a", {3: "x"}, {"a": 1}])
def test_invalid_tags_are_refused(tags):
    with pytest.raises(UsageError, match="must map strings to strings"):
        RunFilter(tags=tags)
