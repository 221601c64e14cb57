"""Executors: measure scenarios in this process, in a worker process, or on the nodes of a Ray cluster.

Plug-ins import `Executor`, `InlineExecutor` and `ManyAtOnce` from here.
"""

from llmtrack.run.executors.executor import Executor as Executor
from llmtrack.run.executors.executor import ManyAtOnce as ManyAtOnce
from llmtrack.run.executors.inline import InlineExecutor as InlineExecutor
