"""Names, records, spool, tracker and queries: everything that talks to MLflow."""
