"""What all engines share about tokens and tensors: specials and spans of text, padding, summed log-likelihoods."""
