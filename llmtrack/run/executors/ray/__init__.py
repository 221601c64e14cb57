"""Measure on the nodes of a Ray cluster; Ray is imported only where it is asked for."""
