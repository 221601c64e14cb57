"""PyTorch engine: a transformers model that generates step by step and scores in padded passes."""

from llmtrack.host.transformers_compat import import_transformers

# Before a module here imports it in full, which takes a second longer.
import_transformers()
