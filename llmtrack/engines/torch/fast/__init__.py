"""Faster decode steps: static cache, compiled layers, fused products and single-row kernels."""
