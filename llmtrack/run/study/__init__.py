"""Run one experiment as a tracked study: plan it, measure its scenarios, report what was tracked."""
