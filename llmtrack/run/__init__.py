"""What runs a study: plan, executors, progress, resume, suite. Reaches both sides of the wall."""
