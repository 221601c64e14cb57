"""Training a causal language model: data, schedule, loop, checkpoints."""
