"""Post-training quantization: recipes as data, and the search for layers to leave unquantized."""
