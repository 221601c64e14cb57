"""Read from MLflow: queries, filters, aliases and artifacts of tracked runs."""
