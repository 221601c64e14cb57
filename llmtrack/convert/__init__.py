"""Convert models for other runtimes, once, with the runtime's own tool in an isolated environment."""
