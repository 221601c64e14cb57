"""Training of a causal language model: sessions, data, loop, checkpoints."""
