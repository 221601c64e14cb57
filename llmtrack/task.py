"""Tasks for a loaded model: the public names of `llmtrack.spec.task`."""

from llmtrack.spec.task import GenerateTask as GenerateTask
from llmtrack.spec.task import PerplexityTask as PerplexityTask
from llmtrack.spec.task import RepeatPolicy as RepeatPolicy
from llmtrack.spec.task import Task as Task
from llmtrack.spec.task import TrainTask as TrainTask
