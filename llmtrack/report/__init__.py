"""Tables, comparisons and plots from tracked runs."""
