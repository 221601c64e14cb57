"""Search for the best way to run a model: search space, priors, trials, and report."""
