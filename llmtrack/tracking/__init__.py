"""Everything that talks to MLflow: names, records, spool, tracker and queries."""

import os

# If its server is unreachable, MLflow's telemetry thread removes an environment variable while requests in other threads
# iterate over all of them for proxy settings, which can fail. Read when mlflow is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
