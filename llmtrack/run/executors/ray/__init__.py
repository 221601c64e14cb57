"""Measure on the nodes of a Ray cluster; Ray is only imported when used."""
