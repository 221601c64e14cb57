"""From tracked runs to a decision: compare, gate, Pareto front and recommendation."""
