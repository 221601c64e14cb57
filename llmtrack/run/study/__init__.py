"""Run an experiment as a tracked study: plan, measure, report."""
