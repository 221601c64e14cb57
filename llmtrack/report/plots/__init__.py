"""Plots of tracked runs, and tables as pictures."""
