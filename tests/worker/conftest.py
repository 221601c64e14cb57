"""Fixtures of studies for the worker tests."""

from tests.run.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    _known_bandwidth,
    console,
    said,
    spooled,
    tracker,
    uri,
)
