"""Benchmarks of speed claims, as ratios measured within one run; started manually, never by the tests."""
