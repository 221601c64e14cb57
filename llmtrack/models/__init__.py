"""Where a model comes from: hub id, local folder, GGUF file, packaged, synthetic."""
