"""Sentences about tracked runs: readings, takeaways, outliers."""
