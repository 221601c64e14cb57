"""Faster decode steps: a static cache, compiled layers, fused products and kernels of one row."""
