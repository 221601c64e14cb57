"""What runs a study: plan, executors, progress, resume, suite. Reaches both sides of the wall.

Called, it runs an experiment: `llmtrack.run("precision")`.
"""

from llmtrack.modules import callable_package

callable_package(__name__, "llmtrack.run.notebook", "run")
