"""Shared token and tensor code: special tokens, text spans, padding, summed log-likelihoods."""
