"""Write to MLflow: records of runs, the spool that keeps them, what is pushed, logged and registered models."""
