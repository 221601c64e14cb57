"""The process and its machine: signals, processes, installed packages, entry points, console and secrets."""
