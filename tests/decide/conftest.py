"""Fixtures of a store and a tracker for decisions over tracked runs."""

from __future__ import annotations

from tests.run.conftest import console  # noqa: F401 - fixture
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    said,
    tracker,
    uri,
)
