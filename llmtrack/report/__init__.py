"""Write the report of a study to a folder and return its page: `llmtrack.report("latest:precision", "report")`.

Call: llmtrack.report(study, folder=".", *, tracking_uri=None)

Args:
    study: result of `llmtrack.run`, or a study selector: an id, `latest`, `latest:precision`.
    folder: for the page, table and plots.
    tracking_uri: the store, unless given by the study.

Returns:
    The path of `report.html`, one self-contained file.

The package also contains the tables, comparisons and plots of tracked runs.
"""

from llmtrack.host.callable_package import callable_package

callable_package(__name__, "llmtrack.run.notebook", "report")
