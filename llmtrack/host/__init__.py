"""This process and its machine: signals, processes, installed packages, entry points, the console and its secrets."""
