"""transformers is imported without the scikit-learn and SciPy that MLflow installs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from llmtrack.host.transformers_compat import hidden_from_transformers, portable_rope
from tests.search_path import with_folders

IMPORTS = """
import sys
from llmtrack.host.transformers_compat import import_transformers

import_transformers()
import_transformers()
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

assert not {"sklearn", "scipy"} & set(sys.modules)
import scipy
import sklearn
"""


@pytest.mark.slow(5)
def test_transformers_imports_no_sklearn_or_scipy_but_others_can(tmp_path, monkeypatch):
    # The real ones take seconds to import.
    for name in ("sklearn", "scipy"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", with_folders(tmp_path))
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


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
