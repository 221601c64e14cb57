"""Corpora and perplexity."""
