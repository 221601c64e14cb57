"""How transformers is imported where MLflow has brought scikit-learn and SciPy."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import sys
from llmtrack.host.transformers_compat import import_transformers

import_transformers()
import_transformers()
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

assert not {"sklearn", "scipy"} & set(sys.modules)
import scipy.optimize
import sklearn
"""

LOOKED_BEFORE = """
import transformers.utils
from llmtrack.host.transformers_compat import import_transformers

import_transformers()
"""


EACH = """
import os
import torch  # once for all

for program in {programs!r}:
    child = os.fork()
    if not child:
        exec(program, {{}})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""


@pytest.mark.slow(8)
def test_transformers_does_without_what_mlflow_brings_and_who_wants_it_or_looked_before_finds_it():
    programs = (IMPORTS, LOOKED_BEFORE)
    subprocess.run([sys.executable, "-c", EACH.format(programs=programs)], check=True)
