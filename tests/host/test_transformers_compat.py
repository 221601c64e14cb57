"""transformers is imported without the scikit-learn and SciPy that MLflow installs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmtrack.host.transformers_compat import portable_rope

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
