"""Tables of tracked runs: rows, columns, widths and formats."""
