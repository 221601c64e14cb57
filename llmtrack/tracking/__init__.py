"""The side that talks to MLflow: `write/` tracks runs, `read/` reads them back."""
