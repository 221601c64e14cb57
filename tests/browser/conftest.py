"""Chromium, and an MLflow server on which a small study was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.browser.chromium import Tab
from tests.browser.study import Tracked, measure, score
from tests.conftest import hide_load
from tests.tracking.conftest import Server, server  # noqa: F401 - fixture

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REQUIRE = "LLMTRACK_REQUIRE_BROWSER"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium for this module only: an open page of MLflow keeps polling, and takes a tenth of a core."""
    if lacking := chromium.missing():
        if os.environ.get(REQUIRE):
            pytest.fail(f"{lacking}, and {REQUIRE} is set")
        pytest.skip(lacking)
    with chromium.browser() as running:
        yield running


@pytest.fixture(scope="module")
def tracked(browser: Browser, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Tracked:  # noqa: F811
    """Measure the study; requests the browser first, without which no study is needed."""
    with pytest.MonkeyPatch.context() as patch:
        hide_load(patch, tmp_path_factory)
        return measure(server.uri)


@pytest.fixture(scope="module")
def documents(tracked: Tracked, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return MLflow's id of an experiment with two runs that scored the same documents."""
    return score(tracked.server, tmp_path_factory.mktemp("spool"))


@pytest.fixture(scope="module")
def _shared(browser: Browser, tracked: Tracked) -> Tab:
    return Tab(browser, tracked.server)


@pytest.fixture
def tab(_shared: Tab) -> Iterator[Tab]:
    """Yield the page shared by all tests; no test may cause a logged error."""
    _shared.errors.clear()
    yield _shared
    assert _shared.errors == []
