"""Search the ways to run a model: what can be tried, what is known beforehand, trials, and their report."""
