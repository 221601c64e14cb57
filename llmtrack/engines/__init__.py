"""Engines: a loaded model and its tokenizer behind one small interface, one file per backend."""
