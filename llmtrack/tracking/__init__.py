"""Everything that talks to MLflow: names, records, spool, tracker and queries."""
