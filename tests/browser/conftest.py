"""Chromium, and an MLflow server on which a small study was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.browser import chromium
from tests.browser.chromium import Tab
from tests.browser.study import Tracked, measure
from tests.tracking.conftest import Server, server  # noqa: F401 - fixture

REQUIRE = "LLMTRACK_REQUIRE_BROWSER"


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Browser]:
    path = chromium.executable()
    if path is None:
        if os.environ.get(REQUIRE):
            pytest.fail(f"there is no chromium on this system, and {REQUIRE} is set")
        pytest.skip("there is no chromium on this system (Debian: apt-get install chromium)")
    with chromium.browser(path) as running:
        yield running


@pytest.fixture(scope="session")
def tracked(browser: chromium.Browser, server: Server) -> Tracked:  # noqa: F811
    """What was measured; asks for the browser first, since without one there is nothing to measure for."""
    return measure(server.uri)


@pytest.fixture(scope="session")
def _shared(browser: chromium.Browser, tracked: Tracked) -> Tab:
    return Tab(browser, tracked.server)


@pytest.fixture
def tab(_shared: Tab) -> Iterator[Tab]:
    """The page of all tests; none of them may let it log an error."""
    _shared.errors.clear()
    yield _shared
    assert _shared.errors == []


@pytest.fixture
def fresh_tab(browser: chromium.Browser, tracked: Tracked) -> Iterator[Tab]:
    """A page that has read nothing yet, and is closed again."""
    tab = Tab(browser, tracked.server)
    yield tab
    tab.page.close()
    assert tab.errors == []
