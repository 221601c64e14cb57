"""What measures: the process that loads an engine, and the generate, perplexity and train tasks. Never mlflow."""
