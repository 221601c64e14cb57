"""Engines: a loaded model and its tokenizer behind one interface, one file per backend."""
