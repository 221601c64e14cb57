"""Measure how to run a causal language model on your machine, and track every measurement in MLflow."""

__version__ = "0.1.0"
