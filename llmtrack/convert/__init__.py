"""Models in the form of other runtimes: converted once by the runtime's own tool, in an environment of its own."""
