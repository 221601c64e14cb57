"""Tables, comparisons and plots from tracked runs.

Called, it writes the report of a study: `llmtrack.report("latest")`.
"""

from llmtrack.modules import callable_package

callable_package(__name__, "llmtrack.run.notebook", "report")
