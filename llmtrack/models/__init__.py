"""Model sources: hub ids, local folders, GGUF files, packaged and synthetic models."""
