"""Quantization after training: recipes as data, and the search for what must stay in float."""
