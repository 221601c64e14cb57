"""Fixtures of studies for the worker tests."""

from tests.run.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    _known_ceilings,
    console,
    messages,
    spooled,
    tracker,
    uri,
)
