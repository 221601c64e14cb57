"""Declare options of an engine, recipe or experiment: the public names of `llmtrack.spec.options`."""

from llmtrack.spec.options import Checked as Checked
from llmtrack.spec.options import NoOptions as NoOptions
from llmtrack.spec.options import chosen as chosen
from llmtrack.spec.options import parameters as parameters
from llmtrack.spec.parameter import NONE as NONE
from llmtrack.spec.parameter import Option as Option
