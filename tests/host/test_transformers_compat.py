"""transformers is imported without the scikit-learn and SciPy that MLflow installs."""

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

ALREADY_CHECKED = """
import transformers.utils
from llmtrack.host.transformers_compat import import_transformers

import_transformers()
"""

RUN_IN_FORKS = """
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
def test_transformers_imports_no_sklearn_or_scipy_but_others_can():
    programs = (IMPORTS, ALREADY_CHECKED)
    subprocess.run([sys.executable, "-c", RUN_IN_FORKS.format(programs=programs)], check=True)
