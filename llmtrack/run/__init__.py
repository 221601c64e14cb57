"""Runner, executors and the worker that measures."""
