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
import scipy.optimize
import sklearn
"""

LOOKED_BEFORE = """
import transformers.utils
from llmtrack.compat import import_transformers

import_transformers()
"""


@pytest.mark.slow(5)
def test_transformers_does_without_what_mlflow_brings_and_who_wants_it_has_it():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


@pytest.mark.slow(5)
def test_transformers_that_has_looked_what_there_is_finds_it():
    subprocess.run([sys.executable, "-c", LOOKED_BEFORE], check=True)
