"""Time, summarize and account for the memory of any engine, through its interface."""
