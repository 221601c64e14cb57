"""transformers is imported without the scikit-learn and SciPy that MLflow installs."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

import pytest

from llmtrack.host.transformers_compat import hidden_from_transformers, portable_rope


def test_what_is_hidden_from_transformers_can_be_imported_afterwards(monkeypatch):
    """That a worker imports neither, for seconds, tests/wall.py enforces."""
    for name in ("sklearn", "scipy", "transformers.utils.import_utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for _ in range(2):
        with hidden_from_transformers():
            assert not find_spec("sklearn")
            assert not find_spec("scipy")
        assert find_spec("sklearn")
        assert find_spec("scipy")


def test_nothing_is_hidden_once_transformers_has_looked_for_it(monkeypatch):
    """It would fail on a package that it has found and cannot import."""
    importlib.import_module("transformers.utils.import_utils")
    for name in ("sklearn", "scipy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with hidden_from_transformers():
        assert not {"sklearn", "scipy"} & set(sys.modules)


def test_rotary_settings_get_both_spellings():
    assert portable_rope({"rope_theta": 5.0}) == {"rope_theta": 5.0}
    both = portable_rope({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}})
    assert both["rope_theta"] == 5.0
    assert both["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_rope_scaling_takes_precedence_over_rope_parameters_as_in_version_5(kind):
    parameters = {"rope_type": "default", "rope_theta": 5.0}
    both = portable_rope({"rope_parameters": parameters, "rope_scaling": {kind: "linear", "factor": 2.0}})
    assert both["rope_theta"] == 5.0
    assert both["rope_scaling"] == {kind: "linear", "factor": 2.0}
