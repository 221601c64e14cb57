"""Measure in the worker process: load an engine and run generate, perplexity and train tasks. Never imports mlflow."""
