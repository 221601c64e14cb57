"""Write the report of a study to a folder, and return its page: `llmtrack.report("latest:precision", "report")`.

Call: llmtrack.report(study, folder=".", *, tracking_uri=None)

Args:
    study: what `llmtrack.run` returned, or whatever names a study: its id, `latest`, `latest:precision`.
    folder: where its page, table and plots are written.
    tracking_uri: the store, where the study does not say.

Returns:
    The path of `report.html`, one self-contained file.

The package also holds the tables, comparisons and plots that are made of tracked runs.
"""

from llmtrack.host.callable_package import callable_package

callable_package(__name__, "llmtrack.run.notebook", "report")
