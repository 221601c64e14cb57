"""Corpora, perplexity, and drift from a reference."""
