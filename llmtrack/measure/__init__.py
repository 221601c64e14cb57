"""Timing, statistics and memory of any engine, through its interface."""
