"""Names, records, spool, tracker and queries: everything that talks to MLflow, and imports it."""

import os

# Where its server does not answer, MLflow's telemetry takes a variable out of the environment, in a thread of its own, while
# requests of other threads go through all variables for a proxy's: one of them then fails. Decided when mlflow is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
