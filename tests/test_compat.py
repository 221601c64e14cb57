"""How transformers is imported where MLflow has brought scikit-learn and SciPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import sys
from llmtrack.compat import import_transformers

import_transformers()
import_transformers()
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

assert not {"sklearn", "scipy"} & set(sys.modules)

import transformers.models
from transformers.utils.import_utils import _LazyModule, define_import_structure

looked = define_import_structure.cache_info()
assert looked.hits, "what the models are was looked for once"
path = transformers.models.__file__
plain = _LazyModule("plain", path, define_import_structure(path))
assert define_import_structure.cache_info().misses == looked.misses + 1
for name in ("_class_to_module", "_modules", "_import_structure"):
    assert getattr(plain, name) == getattr(transformers.models, name), name
assert len(plain._class_to_module) > 1000
import scipy.optimize
import sklearn
"""

LOOKED_BEFORE = """
import transformers.utils
from llmtrack.compat import import_transformers

import_transformers()
"""


@pytest.mark.slow(5)
def test_transformers_reads_its_models_once_and_does_without_what_mlflow_brings_and_who_wants_it_has_it():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


@pytest.mark.slow(5)
def test_transformers_that_has_looked_what_there_is_finds_it():
    subprocess.run([sys.executable, "-c", LOOKED_BEFORE], check=True)
