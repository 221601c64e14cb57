"""Parse parameter values: the public names of `llmtrack.spec.parameter`."""

from llmtrack.spec.parameter import NONE as NONE
from llmtrack.spec.parameter import Option as Option
from llmtrack.spec.parameter import Parameter as Parameter
