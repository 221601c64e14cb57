"""Tracked runs as read back: parsed once by `tracking/`, plain data for decisions and reports."""
