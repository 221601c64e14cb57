"""Decide on tracked runs: comparison, gate, Pareto front and recommendation."""
