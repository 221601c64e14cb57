"""PyTorch engine: a transformers model that generates step by step and scores in padded passes."""
