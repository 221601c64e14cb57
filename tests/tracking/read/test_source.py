"""All runs are read, for any start times, by sequential and by concurrent pages."""

from __future__ import annotations

import gc

import pytest
from mlflow import MlflowClient

from llmtrack.errors import UsageError
from llmtrack.tracking.read import source
from llmtrack.tracking.read.source import newest_runs, read_pages
from tests.tracking.read.test_query import clone

YEAR = 365 * 86_400_000
TIMES = {
    "all of one millisecond": [7] * 23,
    "two crowded hours a year apart": [*range(1, 12), *range(YEAR, YEAR + 12)],
    "evenly spread": [1000 * n for n in range(1, 23)],
    "ties at the edges of pages": [n // 4 for n in range(4, 27)],
    "less than a page": [5, 6],
    "none": [],
}


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(source, "PAGE", 5)
    monkeypatch.setattr(source, "_FIRST_PAGE", 3)


def store_with(uri: str, times: list[int]) -> tuple[MlflowClient, str, set[str]]:
    client = MlflowClient(uri)
    number = client.create_experiment("many")
    if times:
        run = client.create_run(number, start_time=times[0])
        clone(uri, run.info.run_id, times[1:])
    return client, number, {run.info.run_id for run in client.search_runs([number], max_results=1000)}


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("read", [source._in_turn, source._from_server])
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_all_runs_are_read(uri, read, times):
    client, number, expected = store_with(uri, times)
    pages = list(read(client, [number], ""))
    run_ids = [run.info.run_id for page in pages for run in page]
    assert set(run_ids) == expected
    assert len(expected) == len(times)
    assert max(map(len, pages)) <= 5
    assert len(run_ids) <= 3 * len(times)


@pytest.mark.usefixtures("small_pages")
def test_a_filter_applies_to_every_interval(uri):
    client, number, _ = store_with(uri, list(range(1, 20)))
    pages = source._from_server(client, [number], "attributes.start_time < 12")
    assert {run.info.start_time for page in pages for run in page} == set(range(1, 12))


def test_the_newest_runs(uri):
    client, number, _ = store_with(uri, [5, 9, 7])
    assert [run.info.start_time for run in newest_runs(client, [number], "", 2)] == [9, 7]
    assert newest_runs(client, [], "") == []


def test_garbage_collection_resumes_even_after_an_error(uri):
    client, number, _ = store_with(uri, [1, 2])
    assert gc.isenabled()
    for _ in read_pages(client, [number], ""):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(UsageError, match="rejects the filter"):
        list(read_pages(client, [number], "metrics.x <"))
    assert gc.isenabled()
